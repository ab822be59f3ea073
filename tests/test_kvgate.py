"""The library by its public name, which the wheel has too."""

import tomllib

import gateway
import gateway.library
import kvgate
from tests import ROOT


def test_the_library_is_kvgate() -> None:
    assert kvgate.connect is gateway.library.connect and kvgate.request is gateway.request
    assert [name for name in kvgate.__all__ if not hasattr(kvgate, name)] == []


def test_the_wheel_has_the_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["py-modules"] == ["kvgate"]
