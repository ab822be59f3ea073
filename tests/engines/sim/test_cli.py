"""Errors of the command line; test_worker.py has running workers."""

import pytest

from engines.sim.cli import main


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--kv-blocks", "1"], "kv_blocks must be at least 2"),
        (["--tokenizer", "/nowhere"], "/nowhere"),
        (["--faults", '{"slow": 0}'], "slow"),
    ],
)
def test_an_error_is_one_line(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--replay-buffer" in capsys.readouterr().out
