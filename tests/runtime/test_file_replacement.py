"""Replacement of a file: who may read it stays, others never see half of it, and no change is lost."""

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.runtime import file_replacement
from gateway.runtime.file_replacement import NotReplaced, replace_file

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
OTHER = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("one\ntwo\n")
    path.chmod(0o640)
    return path


def rights(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, found.st_mode & 0o7777


def test_the_new_file_is_private_until_it_has_the_rights_of_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def spied(name: str) -> None:
        real = getattr(os, name)

        def spy(number: Any, *more: Any) -> None:
            kind = "directory" if os.path.isdir(f"/proc/self/fd/{number}") else "file"
            steps.append(f"{name} {kind} {os.fstat(number).st_mode & 0o777:o}")
            real(number, *more)

        monkeypatch.setattr(os, name, spy)

    path.parent.chmod(0o700)
    spied("fchmod")
    spied("fsync")
    before = os.umask(0)
    try:
        assert replace_file(path, lambda content: content[4:]) == b"two\n"
    finally:
        os.umask(before)
    assert steps == ["fchmod file 600", "fsync file 640", "fsync directory 700"]
    assert (path.read_text(), rights(path)[2], os.listdir(path.parent)) == ("two\n", 0o640, ["keys"])


def test_a_symbolic_link_stays_one(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    replace_file(link, lambda content: b"new")
    assert link.is_symlink() and path.read_text() == "new"


@needs_root
def test_owner_and_group_stay(path: Path) -> None:
    os.chown(path, OTHER, OTHER)
    replace_file(path, lambda content: b"new")
    assert rights(path) == (OTHER, OTHER, 0o640)


@needs_root
def test_a_file_of_another_owner_is_not_replaced_by_a_user_who_may_not_keep_it(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    path = folder / "keys"
    path.write_text("old")
    number = os.open(folder, os.O_RDONLY)  # a path that the other user reaches
    os.fchmod(number, 0o777)
    os.seteuid(OTHER)
    try:
        with pytest.raises(NotReplaced, match="belongs to user and group 0:0"):
            _write(Path(f"/proc/self/fd/{number}/temporary"), path)
    finally:
        os.seteuid(0)
        os.close(number)
    assert path.read_text() == "old"


def _write(temporary: Path, like: Path) -> None:
    found = os.stat_result((0o100600, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    file_replacement._write(temporary, b"new", like, found)


def test_an_owner_that_cannot_be_kept_refuses_the_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    real = os.fstat

    def elsewhere(number: int) -> os.stat_result:  # the new file would belong to another user
        found = list(real(number))
        found[4] += not found[6]
        return os.stat_result(found)

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "fstat", elsewhere)
    with pytest.raises(NotReplaced, match="its readers might lose access; run this as user"):
        replace_file(path, lambda content: b"new")
    assert (path.read_text(), os.listdir(path.parent)) == ("one\ntwo\n", ["keys"])


def test_a_file_with_another_name_is_not_replaced(path: Path) -> None:
    os.link(path, path.with_name("other"))
    with pytest.raises(NotReplaced, match="another name"):
        replace_file(path, lambda content: b"")
    assert sorted(os.listdir(path.parent)) == ["keys", "other"] and path.read_text() == "one\ntwo\n"


def test_a_line_that_is_added_meanwhile_is_not_lost(path: Path) -> None:
    def change(content: bytes) -> bytes:
        with path.open("a") as file:
            file.write("three\n")
        return content

    with pytest.raises(NotReplaced, match="changed meanwhile; retry"):
        replace_file(path, change)
    assert (path.read_text(), os.listdir(path.parent)) == ("one\ntwo\nthree\n", ["keys"])


def test_changes_at_once_are_all_made(path: Path) -> None:
    path.write_text("".join(f"{number}\n" for number in range(16)))

    def remove(number: int) -> None:
        def change(content: bytes) -> bytes:
            return b"".join(line for line in content.splitlines(True) if int(line) != number)

        replace_file(path, change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(remove, range(15)))
    assert path.read_text() == "15\n"


def test_an_access_list_stays(path: Path) -> None:
    entries = ((1, 6, -1), (2, 4, OTHER), (4, 4, -1), (16, 4, -1), (32, 0, -1))
    given = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", given)
    except OSError as exc:
        pytest.skip(f"the file system of {path.parent} has no access lists: {exc.strerror}")
    replace_file(path, lambda content: b"new")
    assert os.getxattr(path, "system.posix_acl_access") == given
