"""Key file: read as a whole, and reloaded when it changes.

An unusable file leaves the previous keys in use: the keys are **outdated** from then on, which is logged once
for each reason, until the file can be read again. A change counts once it was seen twice: an editor, or a
copy, may be half-way through.

    as at the last look, and read well ─► the keys are those of the file; they are confirmed now
    changed                            ─► wait until it is the same twice, then read
    not read, or not parsed            ─► `fault`: the previous keys stay, and may be revoked already
    not read                           ─► read at each look, since a right may come back without a change
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import KeyRing
from gateway.tenancy.auth.key_format import SaltOf, parse_key_file

log = logging.getLogger("kvgate.keys")

MAX_BYTES = 16 << 20
"""About 100,000 keys, which take about 100 MB of memory. No more of a file is ever read."""

_Fingerprint = tuple[int, ...] | None


class _Unread(ConfigError):
    """The file was not read, so that reading it again may do."""


class KeyFile:
    """API keys of a file that is followed; `ring` has those of the last usable version, `digest` that
    version's SHA-256. `fault` is the reason why the file may have other keys by now; `clock` is monotonic."""

    def __init__(self, path: str, salt_of: SaltOf, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Raises ConfigError."""
        self.path = path
        self.loads: Counter[str] = Counter()
        self.fault: str | None = None
        self._salt_of = salt_of
        self._clock = clock
        self._reading = threading.Lock()
        self._is_unread = False
        self._counts_names = _num_names(path) != 0
        self._loaded = self._seen = _fingerprint(path)
        self.digest, self.ring = self._parsed(_content(path))
        self._confirmed_s = clock()
        if not self.ring.entries:
            log.warning("%s holds no keys: make one with `kvgate key new --tenant NAME`", path)

    def __repr__(self) -> str:
        return f"KeyFile({self.path}, {self.ring!r}, fault={self.fault!r})"

    @property
    def has_admin(self) -> bool:
        return any(entry.caller is not None and entry.caller.is_admin for entry in self.ring.entries.values())

    @property
    def age_s(self) -> float:
        """Seconds since the keys in use were last seen to be the file's: about a second while all is well."""
        return max(self._clock() - self._confirmed_s, 0.0)

    def look(self) -> KeyRing | None:
        """Reload the file if it has changed and is the same as at the last look, or was not read before; None
        where the keys stay."""
        with self._reading:
            before, self._seen = self._seen, _fingerprint(self.path)
            if self._seen == self._loaded and not self._is_unread:
                if self.fault is None:
                    self._confirmed_s = self._clock()
                return None
            if self._seen != before:
                return None
            try:
                self._reload()
            except ConfigError:  # already logged
                return None
            log.info("key file %s: reloaded, %d keys", self.path, len(self.ring.entries))
            return self.ring

    def reload(self) -> KeyRing:
        """Read the file now. Raises ConfigError, with the previous keys in use."""
        with self._reading:
            self._reload()
            log.info("key file %s: reloaded, %d keys", self.path, len(self.ring.entries))
            return self.ring

    def _reload(self) -> None:
        self._loaded = self._seen = _fingerprint(self.path)
        try:
            if self._counts_names and _num_names(self.path) == 0:
                raise _Unread(
                    f"key_file: {self.path} was replaced, and kvgate sees the removed file: it is mounted by "
                    "itself; mount its directory, or restart kvgate"
                )
            digest, ring = self._parsed(_content(self.path))
        except ConfigError as exc:
            self.loads["rejected"] += str(exc) != self.fault
            self._is_unread = isinstance(exc, _Unread)
            if str(exc) != self.fault:
                log.error(
                    "key file %s: cannot be used (%s); keeping the previous keys: one that was revoked since "
                    "then still works, and admin requests that change something get 503",
                    self.path,
                    exc,
                )
            self.fault = str(exc)
            raise
        if self.fault is not None:
            log.warning("key file %s: usable again after %.0f s", self.path, self.age_s)
        self.fault, self._is_unread, self._confirmed_s = None, False, self._clock()
        self.loads["loaded"] += 1
        self.digest, self.ring = digest, ring

    def _parsed(self, content: bytes) -> tuple[str, KeyRing]:
        try:
            text = content.decode()
        except UnicodeDecodeError as exc:
            raise ConfigError(f"key_file: {self.path} is not text: {exc}") from exc
        return _digest(content), parse_key_file(text, f"key_file: {self.path}", self._salt_of)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _content(path: str) -> bytes:
    """Bytes of the file. Raises ConfigError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise _Unread(f"key_file: {path} cannot be read: {exc.strerror}") from exc
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"key_file: {path} is larger than {MAX_BYTES >> 20} MiB, the most that is read; "
            "remove expired keys, or use tokens of an issuer (--jwt-keys)"
        )
    return content


def _num_names(path: str) -> int | None:
    """Number of the file's names: 0 for a removed one that a mount still shows, None for a missing one."""
    try:
        return os.stat(os.path.expanduser(path)).st_nlink
    except OSError:
        return None


def _fingerprint(path: str) -> _Fingerprint:
    """Inode, times and size of the file behind any symbolic links; None where it is missing. The time of the
    last change covers owner and rights, too."""
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
