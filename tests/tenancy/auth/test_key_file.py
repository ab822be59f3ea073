"""Key file that changes while the gateway follows it."""

import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_file import MAX_BYTES, KeyFile
from gateway.tenancy.auth.key_format import format_key_record

KEYS = [make_key(bytes([n] * 6), bytes(32)) for n in range(3)]
LINES = [format_key_record(key, bytes(16), f"t{number}") for number, key in enumerate(KEYS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.jsonl"
    path.write_text(LINES[0])
    return path


def made(path: Path) -> KeyFile:
    return KeyFile(str(path), lambda tenant, groups: None)


def write(path: Path, text: str) -> None:
    """Write the text to a new file, so that no clock is too coarse for the change to be seen."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def test_an_unusable_file_is_rejected_at_the_start(tmp_path: Path, path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^key_file: .*/none cannot be read: No such file"):
        made(tmp_path / "none")
    write(path, LINES[0] + "\n{}")
    with pytest.raises(ConfigError, match=r"^key_file: .*/keys.jsonl:2: missing required field `id`; "):
        made(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not text"):
        made(path)


@pytest.mark.slow
def test_a_file_beyond_its_bound_is_rejected_by_name(path: Path) -> None:
    file = made(path)
    path.write_bytes(b"#\n" * (MAX_BYTES // 2))
    assert not file.reload().entries
    with path.open("ab") as more:
        more.write(b"#")
    with pytest.raises(ConfigError, match=r"^key_file: .*/keys.jsonl is larger than 16 MiB"):
        file.reload()
    with pytest.raises(ConfigError, match="larger"):
        made(Path("/dev/zero"))


def test_a_file_without_keys_is_used_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, "# none\n")
    assert not made(path).ring.entries
    assert "holds no keys" in caplog.text


def test_a_change_is_loaded_once_it_is_stable(path: Path) -> None:
    file = made(path)
    assert file.look() is None
    write(path, "\n".join(LINES[:2]))
    assert file.look() is None
    write(path, "\n".join(LINES))
    assert file.look() is None
    ring = file.look()
    assert ring is file.ring and ring and len(ring.entries) == 3
    assert file.look() is None
    assert file.loads == {"loaded": 1}


def test_an_unusable_change_keeps_the_previous_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = made(path)
    for spoil in (lambda: write(path, "{}"), path.unlink):
        spoil()
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert [file.look() for _ in range(4)] == [None] * 4
        assert file.ring.find(KEYS[0])
        assert caplog.text.count("keeping the previous keys") == 1
    assert file.loads == {"rejected": 2}
    path.write_text(LINES[1])
    rings = [ring for ring in (file.look(), file.look()) if ring]
    assert len(rings) == 1 and rings[0].find(KEYS[1]) and not rings[0].find(KEYS[0])


def test_reload_does_not_wait_for_a_second_check(path: Path) -> None:
    file = made(path)
    write(path, LINES[1])
    assert file.reload().find(KEYS[1])
    assert file.look() is None
    write(path, "x")
    with pytest.raises(ConfigError, match=":1: "):
        file.reload()
    assert file.ring.find(KEYS[1])


def test_keys_are_not_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        file = made(path)
        write(path, LINES[1])
        file.reload()
    assert "1 keys" in caplog.text and KEYS[1].decode() not in caplog.text + repr(file)


def test_a_file_that_could_not_be_read_is_read_again_without_a_change(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    file = KeyFile(str(path), lambda tenant, groups: None, lambda: now[0])
    aside = path.with_name("aside")
    assert (file.look(), file.fault, file.age_s) == (None, None, 0.0)
    path.rename(aside)
    for _ in range(4):
        now[0] += 10.0
        assert file.look() is None
    assert file.fault and "cannot be read: No such file" in file.fault and file.age_s == 40.0
    assert caplog.text.count("cannot be used") == 1 and "one that was revoked since" in caplog.text
    path.mkdir()  # another reason is logged, too
    assert (file.look(), file.look()) == (None, None)
    assert caplog.text.count("cannot be used") == 2 and "Is a directory" in file.fault
    path.rmdir()
    aside.rename(path)
    assert [bool(file.look()) for _ in range(3)].count(True) == 1
    assert (file.fault, file.age_s) == (None, 0.0) and "usable again after 40 s" in caplog.text


def test_a_change_of_rights_alone_is_noticed(path: Path) -> None:
    file = made(path)
    path.chmod(0o600)
    assert [bool(file.look()) for _ in range(3)].count(True) == 1
    assert file.loads == {"loaded": 1}


def test_a_removed_file_that_a_mount_still_shows_is_outdated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(path)
    monkeypatch.setattr("gateway.tenancy.auth.key_file._num_names", lambda path: 0)
    with pytest.raises(ConfigError, match="was replaced, and kvgate sees the removed file"):
        file.reload()
    assert file.fault
    assert made(path).reload(), "a file system that counts no names"


def test_the_digest_is_that_of_the_version_in_use(path: Path) -> None:
    file = made(path)
    before = file.digest
    assert before == sha256(path.read_bytes()).hexdigest()
    write(path, "{}")
    with pytest.raises(ConfigError):
        file.reload()
    assert file.digest == before
