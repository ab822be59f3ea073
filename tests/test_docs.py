"""Links and paths in the documentation lead somewhere: files, headings, backticked paths."""

import re
from pathlib import Path

import pytest

from tests import ROOT

PAGES = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
PATH = re.compile(
    r"`((?:gateway|engines|tests|loadtest|docs|deploy|proto)/[\w./-]*\w\.(?:py|md|yml|lua|proto|json|toml))`"
)


def _prose(page: Path) -> str:
    return FENCE.sub("", (ROOT / page).read_text())


def _anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and the site make them."""
    headings = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", text) for text in HEADING.findall(_prose(page)))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(_prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = (ROOT / page.parent / name).resolve().relative_to(ROOT) if name else page
        assert (ROOT / linked).exists(), f"{page}: {target}"
        assert not anchor or anchor in _anchors(linked), f"{page}: no heading for {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_paths_in_the_text_exist(page: Path) -> None:
    missing = [name for name in PATH.findall((ROOT / page).read_text()) if not (ROOT / name).exists()]
    assert not missing, f"{page}: {missing}"
