"""Names of the checkout for what the wheel has, with packages of a test in place of both."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.wheel_names import main
from tests import ROOT

PROGRAM = """
import loadtest.wheel_names
loadtest.wheel_names.install()
from kvgate.gateway.core import value as first
import gateway.core.value, gateway.core.other
import engines
from gateway.core import value
assert value is first is gateway.core.value and first.LOADED == 1
assert (gateway.__name__, gateway.core.other.__name__) == ("kvgate.gateway", "kvgate.gateway.core.other")
assert gateway.core.other.__spec__.name == "kvgate.gateway.core.other"
assert engines.__name__ == "kvgate.engines"
try:
    import gateway.core.nothing
except ModuleNotFoundError as exc:
    print(exc)
"""


@pytest.mark.process
def test_a_module_is_one_object_under_both_names(tmp_path: Path) -> None:
    for folder in ("kvgate", "kvgate/gateway", "kvgate/gateway/core", "kvgate/engines"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "kvgate/gateway/core/value.py").write_text("LOADED = globals().get('LOADED', 0) + 1\n")
    (tmp_path / "kvgate/gateway/core/other.py").touch()
    start = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
    done = subprocess.run([sys.executable, "-P", "-c", start + PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "No module named 'kvgate.gateway.core.nothing'\n"), (
        done.stderr
    )


def test_a_checkout_is_not_taken_for_a_compiled_wheel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 1
    assert capsys.readouterr().out == f"gateway is {ROOT / 'gateway'}: not compiled\n"
