"""The key file: read as a whole, and anew when it changes.

What cannot be used leaves the keys before in use, and is logged once. A change counts once it was seen
twice: an editor, or a copy, may be half-way through.
"""

import logging
import os
from collections import Counter
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import Ring
from gateway.tenancy.auth.key_format import SaltOf, ring_of

log = logging.getLogger("kvgate.keys")

_Fingerprint = tuple[int, int, int] | None


class KeyFile:
    """`ring` is what it held when it could last be used."""

    def __init__(self, path: str, salt_of: SaltOf) -> None:
        """Raises ConfigError."""
        self.path = path
        self._salt_of = salt_of
        self._loaded = self._seen = _fingerprint(path)
        self.loads: Counter[str] = Counter()
        self.ring = self._read()
        if not self.ring.entries:
            log.warning("%s holds no keys: make one with `kvgate key new --tenant NAME`", path)

    def __repr__(self) -> str:
        return f"KeyFile({self.path}, {self.ring!r})"

    @property
    def has_admin(self) -> bool:
        return any(entry.who is not None and entry.who.is_admin for entry in self.ring.entries.values())

    def look(self) -> Ring | None:
        """What it holds now, if it has changed and was the same at the last look."""
        before, self._seen = self._seen, _fingerprint(self.path)
        if self._seen == self._loaded or self._seen != before:
            return None
        try:
            return self.reload()
        except ConfigError:  # which is logged
            return None

    def reload(self) -> Ring:
        """Raises ConfigError, with the keys before in use."""
        self._loaded = self._seen = _fingerprint(self.path)
        try:
            self.ring = self._read()
        except ConfigError as exc:
            self.loads["refused"] += 1
            log.error("the keys changed and cannot be used, those before stay: %s", exc)
            raise
        self.loads["loaded"] += 1
        log.info("%s was read anew: %d keys", self.path, len(self.ring.entries))
        return self.ring

    def _read(self) -> Ring:
        try:
            text = Path(self.path).expanduser().read_text()
        except OSError as exc:
            raise ConfigError(f"key_file: {self.path} cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"key_file: {self.path} is no text: {exc}") from exc
        return ring_of(text, f"key_file: {self.path}", self._salt_of)


def _fingerprint(path: str) -> _Fingerprint:
    """What changes with its content, behind any symbolic links; None where it is missing."""
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
