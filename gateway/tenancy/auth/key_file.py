"""Key file: read as a whole, and reloaded when it changes.

An unusable file leaves the previous keys in use, and is logged once. A change counts once it was seen twice:
an editor, or a copy, may be half-way through.
"""

import logging
import os
from collections import Counter
from pathlib import Path

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import KeyRing
from gateway.tenancy.auth.key_format import SaltOf, parse_key_file

log = logging.getLogger("kvgate.keys")

MAX_BYTES = 16 << 20
"""About 100,000 keys, which take about 100 MB of memory. No more of a file is ever read."""

_Fingerprint = tuple[int, int, int] | None


class KeyFile:
    """API keys of a file that is followed; `ring` has those of the last usable version."""

    def __init__(self, path: str, salt_of: SaltOf) -> None:
        """Read the file. Raises ConfigError."""
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
        return any(entry.caller is not None and entry.caller.is_admin for entry in self.ring.entries.values())

    def look(self) -> KeyRing | None:
        """Reload the file if it has changed and is the same as at the last look; None otherwise."""
        before, self._seen = self._seen, _fingerprint(self.path)
        if self._seen == self._loaded or self._seen != before:
            return None
        try:
            return self.reload()
        except ConfigError:  # already logged
            return None

    def reload(self) -> KeyRing:
        """Read the file now. Raises ConfigError, with the previous keys in use."""
        self._loaded = self._seen = _fingerprint(self.path)
        try:
            self.ring = self._read()
        except ConfigError as exc:
            self.loads["refused"] += 1
            log.error("key file changed but cannot be used, keeping the previous keys: %s", exc)
            raise
        self.loads["loaded"] += 1
        log.info("key file %s: reloaded, %d keys", self.path, len(self.ring.entries))
        return self.ring

    def _read(self) -> KeyRing:
        try:
            with Path(self.path).expanduser().open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ConfigError(
                    f"key_file: {self.path} is larger than {MAX_BYTES >> 20} MiB, the most that is read; "
                    "remove expired keys, or use tokens of an issuer (--jwt-keys)"
                )
            text = content.decode()
        except OSError as exc:
            raise ConfigError(f"key_file: {self.path} cannot be read: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"key_file: {self.path} is not text: {exc}") from exc
        return parse_key_file(text, f"key_file: {self.path}", self._salt_of)


def _fingerprint(path: str) -> _Fingerprint:
    """Inode, time and size of the file behind any symbolic links; None where it is missing."""
    try:
        found = os.stat(os.path.expanduser(path))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
