"""`kvgate key revoke`: the change of the file, and what gateways answer about it."""

from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from gateway.commands.revocation import NOT_CONFIRMED, doubts_of, without
from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_format import format_key_record

KEYS = [make_key(bytes([n] * 6), bytes(32)) for n in range(2)]
LINES = [format_key_record(key, bytes(16), f"t{number}") + "\n" for number, key in enumerate(KEYS)]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("".join(["# ours\n", *LINES]))
    return file


def test_only_the_line_of_the_key_is_removed(file: Path) -> None:
    content = file.read_bytes()
    assert without(content, "keys", "000000000000") == ("# ours\n" + LINES[1]).encode()
    with pytest.raises(ConfigError, match="has no key with the id '0'"):
        without(content, "keys", "0")
    with pytest.raises(ConfigError, match="not UTF-8"):
        without(b"\xff", "keys", "0")


def test_without_a_gateway_a_warning_says_how_to_confirm(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["key", "revoke", "000000000000", "--key-file", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"key 000000000000 removed from {file}\n"
    assert "no gateway has confirmed it" in printed.err and "--admin-url" in printed.err


def test_a_gateway_that_does_not_answer_confirms_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--key-file", str(file), "--admin-url", NOWHERE, "--wait-s", "0"]
    assert cli.main(["key", "revoke", "000000000000", *flags]) == NOT_CONFIRMED
    printed = capsys.readouterr()
    assert f"{NOWHERE}: NOT confirmed, the key may still work there: not a gateway's" in printed.err
    assert "confirmed" not in printed.out and file.read_text() == "# ours\n" + LINES[1]


def test_an_unreadable_admin_key_leaves_the_file_unchanged(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_text()
    flags = ["--key-file", str(file), "--admin-key-file", str(file.with_name("no"))]
    assert cli.main(["key", "revoke", "000000000000", *flags]) == 2
    assert "cannot be read" in capsys.readouterr().err and file.read_text() == before


def used(digest: str, fault: str | None = None) -> dict[str, Any]:
    return {"name": "key_file", "path": "/k", "digests": digest.split(), "age_s": 90.0, "error": fault}


@pytest.mark.parametrize(
    ("files", "keys", "words"),
    [
        ([used("new")], [], None),
        ([used("old"), used("new")], [], None),
        ([used("old")], [], "another version of the file, or another file: /k (90 s old)"),
        ([used("new old")], [], "another version"),
        ([used("old", "Permission denied")], [], "/k: Permission denied"),
        ([], [], "no key file"),
        (None, [], "older than this command"),
        ([used("new")], [{"id": "00"}], "knows the key '00' from another file"),
    ],
)
def test_only_a_gateway_that_uses_the_new_file_confirms(
    files: list[Any] | None, keys: list[Any], words: str | None
) -> None:
    doubts = list(doubts_of({"files": files, "keys": keys}, "00", "new"))
    assert doubts == [] if words is None else len(doubts) == 1 and words in doubts[0]
