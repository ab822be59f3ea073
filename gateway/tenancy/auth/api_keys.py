"""API keys: their format, their hash, and the lookup of a key's caller.

    kvg-0b1c2d3e4f50-q8…43 characters…Zw
        └ its id: names the line of the file, and may be logged
                     └ 256 random bits: they cannot be guessed, so that a fast hash is enough

A password needs a slow hash, since people choose words that can be tried. Keys of 256 random bits cannot be
tried however fast the hash is: a leaked file discloses none, and a lookup costs 0.7 us per request. The hash
is keyed by a salt of the line's own (BLAKE2s with a key, RFC 7693), so that a hash is worth nothing
elsewhere.

An imported key contains no kvgate id. It is found by another hash of it, which stands in the file and nowhere
else: its id is a random number, since ids are logged. It has to be as good as random (`check_imported`), for
the reason above.

A presented key is never compared: it is looked up by its id, hashed with that line's salt (or with a dummy
salt, so that unknown ids take as long as known ones), and the hashes are compared in constant time.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2s
from hmac import compare_digest
from typing import Final

from gateway.core.caller import Caller

PREFIX: Final = b"kvg-"
ID_DIGITS: Final = 12
NUM_SECRET_BYTES: Final = 32
NUM_SALT_BYTES: Final = 16
NUM_FINDER_BYTES: Final = 16
MAX_KEY_BYTES: Final = 256
"""Longer keys are not hashed: kvgate makes none."""
MIN_IMPORTED_CHARS, MIN_DIFFERENT_CHARS = 20, 10
"""Lower bounds for imported keys: 22 random characters have 128 bits; invented passwords are mostly shorter
or repetitive."""


_OURS: Final = re.compile(rb"kvg-[0-9a-f]{12}-[A-Za-z0-9_-]{43}")


class KeyEntry:
    """Salted hash of one key, with its caller."""

    __slots__ = ("salt", "digest", "caller")

    def __init__(self, salt: bytes, digest: bytes, caller: Caller | None) -> None:
        self.salt = salt
        self.digest = digest
        self.caller = caller


_UNKNOWN_KEY: Final = KeyEntry(bytes(NUM_SALT_BYTES), bytes(NUM_SECRET_BYTES), None)


class KeyRing:
    """Keys of a file by id, and cache-sharing groups by tenant. `imported` has the keys that kvgate did not
    make, by their lookup hash (`finder_of`)."""

    def __init__(
        self,
        entries: Mapping[bytes, KeyEntry],
        groups: Mapping[str, str],
        imported: Mapping[bytes, KeyEntry] | None = None,
    ) -> None:
        self.entries = dict(entries)
        self.groups = dict(groups)
        self.imported = dict(imported or {})

    def __repr__(self) -> str:
        return f"KeyRing({len(self.entries)} keys, {len(set(self.groups.values()))} groups)"

    def find(self, key: bytes) -> Caller | None:
        """Caller of a key, expired or not; None if the key is unknown."""
        if len(key) > MAX_KEY_BYTES:
            return None
        if self.imported and not key.startswith(PREFIX):
            entry = self.imported.get(finder_of(key), _UNKNOWN_KEY)
        else:
            entry = self.entries.get(id_of(key), _UNKNOWN_KEY)
        return entry.caller if compare_digest(digest_of(key, entry.salt), entry.digest) else None


def id_of(key: bytes) -> bytes:
    """Id part of a key; bytes that are no kvgate key yield an id that no key has."""
    return key[len(PREFIX) : len(PREFIX) + ID_DIGITS]


def finder_of(key: bytes) -> bytes:
    return blake2s(key, digest_size=NUM_FINDER_BYTES, key=b"kvgate imported").digest()


def is_ours(key: bytes) -> bool:
    """True if the key has the format that kvgate generates, from any gateway."""
    return _OURS.fullmatch(key) is not None


def check_imported(key: bytes) -> None:
    """Check that a key to import is as hard to guess as a random one. Raises ValueError, without the key in
    its text."""
    if not key.isascii() or not key.decode("ascii").isprintable() or b" " in key or len(key) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} ASCII characters and no spaces")
    if key.startswith(PREFIX):
        raise ValueError("it starts with 'kvg-' but is not a kvgate key")
    if key.count(b".") == 2:
        raise ValueError("it is a JWT, which needs no import: see --jwt-keys")
    if len(key) < MIN_IMPORTED_CHARS or len(set(key)) < MIN_DIFFERENT_CHARS:
        has = f"it has {len(key)} characters, {len(set(key))} different ones"
        least = f"{MIN_IMPORTED_CHARS} and {MIN_DIFFERENT_CHARS}"
        raise ValueError(f"it could be guessed from its hash: {has}; random keys have at least {least}")


def digest_of(key: bytes, salt: bytes) -> bytes:
    return blake2s(key, key=salt).digest()


def make_key(id_bytes: bytes, secret: bytes) -> bytes:
    """Format a key from ID_DIGITS / 2 and NUM_SECRET_BYTES random bytes."""
    return b"%b%b-%b" % (PREFIX, id_bytes.hex().encode(), urlsafe_b64encode(secret).rstrip(b"="))
