"""Bill of materials of an image; `make test-image` checks that of the image with the standard's schema."""

from email.parser import Parser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

SPEC = spec_from_file_location("sbom", ROOT / "deploy/image/sbom.py")
assert SPEC is not None and SPEC.loader is not None
sbom: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(sbom)


@pytest.mark.parametrize(
    ("fields", "licences"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: other", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: BSD", [{"license": {"name": "BSD"}}]),
        (
            "License: Copyright 2020\n  all of the text\nClassifier: License :: OSI Approved :: MIT License",
            [{"license": {"name": "MIT License"}}],
        ),
        (f"License: {'a text ' * 20}", []),
        ("Classifier: Typing :: Typed", []),
    ],
    ids=["expression", "name", "text and classifier", "text", "none"],
)
def test_a_licence_is_the_nearest_to_an_identifier(fields: str, licences: list[Any]) -> None:
    assert sbom.python_licences(Parser().parsestr(f"Name: a\n{fields}\n")) == licences


def test_prose_about_a_licence_gives_no_name() -> None:
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
    parts = "Files: *\nLicense: GPL-2+\n\nLicense: BSD-3-clause\n text\n\nLicense: GPL-2+\n"
    names = [each["license"]["name"] for each in sbom.debian_licences(head + parts)]
    assert names == ["BSD-3-clause", "GPL-2+"] and sbom.debian_licences(parts) == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    info = tmp_path / "opt/kvgate/lib/python3.11/site-packages"
    for name, version in (("kvgate", "0.1.0"), ("Two_Words", "1+local")):
        (info / f"{name}-{version}.dist-info").mkdir(parents=True)
        (info / f"{name}-{version}.dist-info/METADATA").write_text(
            f"Name: {name}\nVersion: {version}\n\nText\n"
        )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/debian_version").write_text("12.15\n")
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: libstdc++6\nVersion: 1:12.2~rc-14+deb12\nArchitecture: arm64\nDescription: C++\n more\n\n"
    )
    return tmp_path


def test_packages_have_the_addresses_that_scanners_know(root: Path) -> None:
    assert [each["purl"] for each in sbom.bill(root)["components"]] == [
        "pkg:pypi/two-words@1%2Blocal",
        "pkg:pypi/kvgate@0.1.0",
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2~rc-14%2Bdeb12?arch=arm64&distro=debian-12",
    ]


def test_equal_images_have_equal_bills(root: Path) -> None:
    assert sbom.bill(root) == sbom.bill(root)
    assert sbom.bill(root)["metadata"]["component"]["version"] == "0.1.0"
