"""Module `kvgate`, the public name of the library, which is part of the wheel."""

import tomllib

import gateway
import gateway.library
import kvgate
from tests import ROOT


def test_kvgate_exports_the_library() -> None:
    assert kvgate.connect is gateway.library.connect and kvgate.request is gateway.request
    assert [name for name in kvgate.__all__ if not hasattr(kvgate, name)] == []


def test_wheel_contains_kvgate() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["py-modules"] == ["kvgate"]
