"""Metadata of the package, checked as an index does before it takes a file."""

import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

import kvgate
from gateway import cli
from tests import ROOT


@pytest.fixture
def metadata(wheel: Path) -> Metadata:
    """Raises ExceptionGroup with each field that is not as the standards want it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        return Metadata.from_email(archive.read(name), validate=True)


def test_name_version_and_license_are_those_of_the_project(metadata: Metadata) -> None:
    assert (metadata.name, str(metadata.version)) == ("kvgate", kvgate.__version__)
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE"])


def test_the_description_is_the_readme(metadata: Metadata) -> None:
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    assert metadata.summary is not None and len(metadata.summary) < 200 and metadata.keywords


def test_classifiers_agree_with_the_rest(metadata: Metadata) -> None:
    classifiers = metadata.classifiers or []
    assert len(set(classifiers)) == len(classifiers)
    assert not [each for each in classifiers if each.startswith("License ::")], "the expression says it"
    assert "Typing :: Typed" in classifiers and (ROOT / "kvgate/py.typed").is_file()
    prefix = "Programming Language :: Python :: 3."
    versions = [f"3.{each.removeprefix(prefix)}" for each in classifiers if each.startswith(prefix)]
    assert metadata.requires_python is not None and len(versions) > 1
    assert list(SpecifierSet(str(metadata.requires_python)).filter(versions)) == versions


def test_no_address_is_made_up(metadata: Metadata) -> None:
    """The project has no public address yet; those that it gets are secure ones, and not examples."""
    for url in (metadata.project_urls or {}).values():
        assert url.startswith("https://") and "example" not in url


def test_the_command_is_the_packages_main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"kvgate": "kvgate.__main__:main"}
    loaded = EntryPoint("kvgate", project["scripts"]["kvgate"], "console_scripts").load()
    assert loaded is cli.main
