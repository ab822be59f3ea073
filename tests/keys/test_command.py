"""`kvgate key new`: what it prints is what a gateway takes."""

import pytest

from gateway import cli
from gateway.core.errors import ConfigError
from gateway.core.keylines import ring_of
from gateway.keys.command import expiry


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert cli.main(["key", "new", *arguments]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err.split()[-1]


def test_the_line_knows_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    line, key = made(capsys, "--tenant", "acme", "--models", "m, org/n", "--expires", "2027-01-01", "--admin")
    who = ring_of(line, "line").find(key.encode())
    assert who and (who.tenant, who.models, who.expires_s) == ("acme", {"m", "org/n"}, 1798761600.0)
    assert who.is_admin and key not in line and line.count("\n") == 1


def test_no_two_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [made(capsys, "--tenant", "a")[0] for _ in range(20)]
    assert len(ring_of("".join(lines), "lines").entries) == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tenant", "*"], "--tenant: '*' means something else"),
        (["--tenant", "a", "--expires", "tomorrow"], "--expires: 'tomorrow' is no date"),
    ],
)
def test_what_cannot_be_made(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert cli.main(["key", "new", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out


def test_days_from_now() -> None:
    assert expiry("90d", 0.0) == "1970-04-01T00:00:00Z"
    assert expiry("99999d", 0.0).startswith("2243-")  # far, and a date
    assert (expiry("", 0.0), expiry("2027-01-01", 0.0)) == ("", "2027-01-01")
    with pytest.raises(ConfigError, match="beyond the calendar"):
        expiry("99999d", 253402300000.0)
