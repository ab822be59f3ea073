"""`kvgate key new` and `kvgate key import`: what they print is what a gateway takes."""

from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from gateway import cli
from gateway.commands.key import expiry
from gateway.core.errors import ConfigError
from gateway.tenancy.auth.key_format import parse_key_file


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert cli.main(["key", "new", *arguments]) == 0
    printed = capsys.readouterr()
    return printed.out, printed.err.split()[-1]


def test_the_line_knows_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    line, key = made(capsys, "--tenant", "acme", "--models", "m, org/n", "--expires", "2027-01-01", "--admin")
    who = parse_key_file(line, "line").find(key.encode())
    assert who and (who.tenant, who.models, who.expires_s) == ("acme", {"m", "org/n"}, 1798761600.0)
    assert who.is_admin and key not in line and line.count("\n") == 1


def test_no_two_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [made(capsys, "--tenant", "a")[0] for _ in range(20)]
    assert len(parse_key_file("".join(lines), "lines").entries) == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tenant", "*"], "--tenant: '*' is reserved"),
        (["--tenant", "a", "--expires", "tomorrow"], "--expires: 'tomorrow' is not a date"),
        (["--tenant", "a", "--models", ""], "--models: name one or more"),
        (["--tenant", "a", "--models", " , "], "--models: name one or more"),
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


OLD, OTHER = "sk-Zp4q9XvT2mLwK8cRbN7d", "3f2b8c1e-9a47-4d06-b5e2-7c1f0a9d8e64"


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["key", "import", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_keys_that_clients_have_are_imported_from_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, ours = made(capsys, "--tenant", "elsewhere")
    file = tmp_path / "keys"
    file.write_text(f"{OLD}\n\n  {OTHER}\r\n{ours}")
    flags = ("--tenant", "acme", "--models", "m", "--expires", "2027-01-01", "--admin")
    code, lines, said = imported(capsys, *flags, str(file))
    assert (code, lines.count("\n"), said) == (0, 3, "")
    ring = parse_key_file(lines, "lines")
    for key in (OLD, OTHER, ours):
        who = ring.find(key.encode())
        assert who and (who.tenant, who.models, who.is_admin) == ("acme", {"m"}, True)
        assert key not in lines and key[-12:] not in lines and who.name not in (OLD + OTHER)
    assert len({who.name for who in map(ring.find, (OLD.encode(), OTHER.encode())) if who}) == 2
    assert (who := ring.find(ours.encode())) and who.name == ours[4:16], "its id is in it"


def test_or_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(OLD.encode() + b"\n")))
    code, lines, _ = imported(capsys, "--tenant", "acme")
    assert code == 0 and parse_key_file(lines, "lines").find(OLD.encode())


def test_or_typed_without_being_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(BytesIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("gateway.commands.key.getpass", lambda prompt: OLD)
    code, lines, said = imported(capsys, "--tenant", "acme", "-")
    assert code == 0 and parse_key_file(lines, "lines").find(OLD.encode()) and OLD not in said


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (f"{OLD}\nhunter2\n", (), "import: line 2: it could be guessed from its hash"),
        (f"{OLD}\n{OLD}\n", (), "import:2: find: this key repeats an earlier line"),
        ("\n", (), "import: the input has no keys"),
        (OLD, ("--expires", "soon"), "--expires: 'soon' is not a date"),
    ],
)
def test_what_cannot_be_imported_is_said_without_the_key_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, flags: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    code, lines, said = imported(capsys, "--tenant", "acme", *flags, str(file))
    assert (code, lines) == (2, "") and words in said
    assert OLD not in said and "hunter2" not in said


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, said = imported(capsys, "--tenant", "acme", str(tmp_path / "none"))
    assert (code, "cannot be read" in said) == (2, True)
