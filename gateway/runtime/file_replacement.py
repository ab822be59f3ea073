"""Replacement of a file at once: its readers see the old content or the new one, and who may read it stays.

    lock the directory ─► read ─► new file, 0600 ─► owner, group, mode, access list ─► disk ─► rename ─► disk

The new content is in no file that more users may read than the old one, at no time. Where owner, group or
access list cannot be kept, nothing is changed: written in place, a reader could see half of a file, and a
full disk would leave it so.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT_ATTRIBUTES = ("system.posix_acl_access", "security.selinux")
"""Extended attributes that decide, beside owner and mode, who may read a file."""

Change = Callable[[bytes], bytes]


class NotReplaced(OSError):
    """The file cannot be replaced without a change of who may read it; `strerror` has the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


def replace_file(path: Path, change: Change) -> bytes:
    """Replace a file's content by `change` of it, and return the new content; symbolic links are followed.
    Changes by this function happen one after the other. Raises OSError, and what `change` raises, with
    nothing changed."""
    path = path.resolve()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            content = change(file.read())
        if before.st_nlink > 1:
            raise NotReplaced("it has another name (a hard link), which would keep the old content")
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _write(temporary, content, path, before)
            if _version(os.stat(path)) != _version(before):
                raise NotReplaced("it was changed meanwhile; retry")
            temporary.replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise
        os.fsync(directory)
    finally:
        os.close(directory)
    return content


def _write(temporary: Path, content: bytes, like: Path, found: os.stat_result) -> None:
    """Write a new file that belongs to the same owner as `like`, and that the same users may read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        made, number = os.fstat(file.fileno()), file.fileno()
        if (made.st_uid, made.st_gid) != (found.st_uid, found.st_gid):
            _give(number, found)
        file.write(content)
        os.fchmod(number, stat.S_IMODE(found.st_mode))
        _copy_attributes(like, number)
        file.flush()
        os.fsync(number)


def _give(number: int, found: os.stat_result) -> None:
    try:
        os.fchown(number, found.st_uid, found.st_gid)
    except PermissionError as exc:
        owner, own = f"{found.st_uid}:{found.st_gid}", f"{os.geteuid()}:{os.getegid()}"
        raise NotReplaced(
            f"it belongs to user and group {owner}, which {own} cannot keep, so that its readers might lose "
            f"access; run this as user {found.st_uid} or as root"
        ) from exc


def _copy_attributes(like: Path, number: int) -> None:
    if sys.platform != "linux":
        return
    try:
        names = set(os.listxattr(like))
    except OSError:  # the file system has none
        return
    for name in names.intersection(KEPT_ATTRIBUTES):
        value = os.getxattr(like, name)
        try:
            if name not in os.listxattr(number) or os.getxattr(number, name) != value:
                os.setxattr(number, name, value)
        except OSError as exc:
            raise NotReplaced(f"its attribute {name} cannot be kept: {exc.strerror}") from exc


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
