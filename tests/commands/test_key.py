"""`kvgate key new` and `kvgate key import`: a gateway accepts the lines that they print."""

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


def test_a_printed_line_authenticates_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    line, key = made(capsys, "--tenant", "acme", "--models", "m, org/n", "--expires", "2027-01-01", "--admin")
    caller = parse_key_file(line, "line").find(key.encode())
    assert caller and (caller.tenant, caller.models, caller.expires_s) == (
        "acme",
        {"m", "org/n"},
        1798761600.0,
    )
    assert caller.is_admin and key not in line and line.count("\n") == 1


@pytest.mark.slow
def test_two_new_keys_differ(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_an_invalid_key_is_not_made(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli.main(["key", "new", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out


def test_an_expiry_is_read_as_days_or_a_date() -> None:
    assert expiry("90d", 0.0) == "1970-04-01T00:00:00Z"
    assert expiry("99999d", 0.0).startswith("2243-")  # long from now, and a date
    assert (expiry("", 0.0), expiry("2027-01-01", 0.0)) == ("", "2027-01-01")
    with pytest.raises(ConfigError, match="beyond the calendar"):
        expiry("99999d", 253402300000.0)


OLD, OTHER = "sk-Zp4q9XvT2mLwK8cRbN7d", "3f2b8c1e-9a47-4d06-b5e2-7c1f0a9d8e64"


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["key", "import", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_keys_are_imported_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, ours = made(capsys, "--tenant", "elsewhere")
    file = tmp_path / "keys"
    file.write_text(f"{OLD}\n\n  {OTHER}\r\n{ours}")
    flags = ("--tenant", "acme", "--models", "m", "--expires", "2027-01-01", "--admin")
    code, lines, errors = imported(capsys, *flags, str(file))
    assert (code, lines.count("\n"), errors) == (0, 3, "")
    ring = parse_key_file(lines, "lines")
    for key in (OLD, OTHER, ours):
        caller = ring.find(key.encode())
        assert caller and (caller.tenant, caller.models, caller.is_admin) == ("acme", {"m"}, True)
        assert key not in lines and key[-12:] not in lines and caller.name not in (OLD + OTHER)
    assert len({caller.name for caller in map(ring.find, (OLD.encode(), OTHER.encode())) if caller}) == 2
    assert (caller := ring.find(ours.encode())) and caller.name == ours[4:16], "its id is in it"


def test_keys_are_imported_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(OLD.encode() + b"\n")))
    code, lines, _ = imported(capsys, "--tenant", "acme")
    assert code == 0 and parse_key_file(lines, "lines").find(OLD.encode())


def test_keys_are_imported_from_a_terminal_without_echo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(BytesIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("gateway.commands.key.getpass", lambda prompt: OLD)
    code, lines, errors = imported(capsys, "--tenant", "acme", "-")
    assert code == 0 and parse_key_file(lines, "lines").find(OLD.encode()) and OLD not in errors


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (f"{OLD}\nhunter2\n", (), "import: line 2: it could be guessed from its hash"),
        (f"{OLD}\n{OLD}\n", (), "import:2: find: this key repeats an earlier line"),
        ("\n", (), "import: the input has no keys"),
        (OLD, ("--expires", "soon"), "--expires: 'soon' is not a date"),
    ],
)
def test_an_invalid_import_is_reported_without_the_key_and_prints_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, flags: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    code, lines, errors = imported(capsys, "--tenant", "acme", *flags, str(file))
    assert (code, lines) == (2, "") and words in errors
    assert OLD not in errors and "hunter2" not in errors


def test_a_missing_file_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, errors = imported(capsys, "--tenant", "acme", str(tmp_path / "none"))
    assert (code, "cannot be read" in errors) == (2, True)


def test_keys_are_listed_and_one_is_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, key = made(capsys, "--tenant", "acme", "--models", "m,n", "--expires", "2020-01-01", "--admin")
    second, other = made(capsys, "--tenant", "zoo")
    file = tmp_path / "keys.jsonl"
    file.write_text(f"# ours\n{first}{second}")
    file.chmod(0o600)
    assert cli.main(["key", "list", "--key-file", str(file)]) == 0
    out = capsys.readouterr().out
    _, acme, zoo = out.splitlines()
    assert acme.split()[1:] == ["acme", "m,n", "2020-01-01T00:00:00Z", "(expired)", "admin"]
    assert zoo.split()[1:] == ["zoo", "all", "never"]
    assert key not in out and other not in out
    key_id = acme.split()[0]
    assert cli.main(["key", "revoke", key_id, "--key-file", str(file)]) == 0
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"# ours\n{second}", 0o600)
    ring = parse_key_file(file.read_text(), "file")
    assert ring.find(key.encode()) is None and ring.find(other.encode()) is not None
    assert list(tmp_path.iterdir()) == [file]


def test_an_unknown_key_is_not_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = made(capsys, "--tenant", "acme")
    file = tmp_path / "keys.jsonl"
    file.write_text(line)
    assert cli.main(["key", "revoke", "0123", "--key-file", str(file)]) == 2
    assert "has no key with the id '0123'" in capsys.readouterr().err and file.read_text() == line
    assert cli.main(["key", "list", "--key-file", str(tmp_path / "no")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
