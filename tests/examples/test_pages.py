"""Pages show the examples as they are, and the folder's page names each of them."""

import re

from tests import ROOT

EXAMPLES = ROOT / "examples"


def test_the_page_of_reverse_proxies_shows_the_site_of_nginx() -> None:
    page = (ROOT / "docs/guides/reverse-proxies.md").read_text()
    assert f"```nginx\n{(EXAMPLES / 'nginx/kvgate.conf').read_text()}```\n" in page


def test_each_example_is_named_on_the_page_and_has_a_test() -> None:
    page = (EXAMPLES / "README.md").read_text()
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith("__")}
    named = dict(re.findall(r"^\| \[([\w-]+)\]\(([^)]+)\)", page, re.M))
    assert named.keys() == folders
    assert all((EXAMPLES / file).is_file() for file in named.values())
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests/examples").glob("test_*.py")}
    assert {name.replace("-", "_") for name in folders} - {"nginx"} == tests - {"pages"}
