import tomllib

import gateway
from gateway.runtime.build import VERSION, is_compiled
from tests import ROOT


def test_the_version_is_that_of_the_package() -> None:
    assert gateway.__version__ == VERSION
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_a_checkout_is_interpreted() -> None:
    assert is_compiled is gateway.is_compiled
