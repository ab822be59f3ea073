"""API keys: what one looks like, how a hash of it is made, and whose it is.

    kvg-0b1c2d3e4f50-q8…43 characters…Zw
        └ its id: says which line of the file, and may be logged
                     └ 256 random bits: nobody guesses them, so that a fast hash is enough

A password needs a slow hash, since people choose words that can be tried. Keys of 256 random bits cannot be
tried however fast the hash is: a leaked file gives none away, and 0.7 us a request is all that one costs.
The hash is keyed by a salt of the line's own (BLAKE2s with a key, RFC 7693), so that a hash is worth
nothing elsewhere.

A key that was not made here has no id of ours in it. It is found by another hash of it, which stands in
the file and nowhere else: its id is a number that says nothing of it, since ids are logged. It has to be as
good as random (`check_imported`), for the reason above.

What is presented is never compared: it is looked up by its id, hashed with that line's salt (or with
nobody's, so that unknown ids take as long as known ones), and the hashes are compared in constant time.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2s
from hmac import compare_digest

from gateway.http.caller import Who

PREFIX = b"kvg-"
ID_DIGITS = 12
NUM_SECRET_BYTES = 32
NUM_SALT_BYTES = 16
NUM_FINDER_BYTES = 16
MAX_KEY_BYTES = 256
"""Longer ones are not hashed: they are none of ours."""
MIN_IMPORTED_CHARS, MIN_DIFFERENT_CHARS = 20, 10
"""22 random characters have 128 bits. What people think up is mostly shorter, or repeats itself."""


_OURS = re.compile(rb"kvg-[0-9a-f]{12}-[A-Za-z0-9_-]{43}")


class Entry:
    """One line of a key file: whose key has this hash."""

    __slots__ = ("salt", "digest", "who")

    def __init__(self, salt: bytes, digest: bytes, who: Who | None) -> None:
        self.salt = salt
        self.digest = digest
        self.who = who


_NOBODY = Entry(bytes(NUM_SALT_BYTES), bytes(NUM_SECRET_BYTES), None)


class Ring:
    """All keys of a file by their ids, and the groups of tenants that share a cache, by tenant. `imported`
    are those of the keys that were not made here, by what they are found with."""

    def __init__(
        self,
        entries: Mapping[bytes, Entry],
        groups: Mapping[str, str],
        imported: Mapping[bytes, Entry] | None = None,
    ) -> None:
        self.entries = dict(entries)
        self.groups = dict(groups)
        self.imported = dict(imported or {})

    def __repr__(self) -> str:
        return f"Ring({len(self.entries)} keys, {len(set(self.groups.values()))} groups)"

    def find(self, key: bytes) -> Who | None:
        """Whose it is, expired or not."""
        if len(key) > MAX_KEY_BYTES:
            return None
        if self.imported and not key.startswith(PREFIX):
            entry = self.imported.get(finder_of(key), _NOBODY)
        else:
            entry = self.entries.get(id_of(key), _NOBODY)
        return entry.who if compare_digest(digest_of(key, entry.salt), entry.digest) else None


def id_of(key: bytes) -> bytes:
    """Of any bytes; what is not one of our keys has an id that nobody has."""
    return key[len(PREFIX) : len(PREFIX) + ID_DIGITS]


def finder_of(key: bytes) -> bytes:
    return blake2s(key, digest_size=NUM_FINDER_BYTES, key=b"kvgate imported").digest()


def is_ours(key: bytes) -> bool:
    """Whether it has the form of one that was made here, by whatever gateway."""
    return _OURS.fullmatch(key) is not None


def check_imported(key: bytes) -> None:
    """Raises ValueError, which does not tell the key."""
    if not key.isascii() or not key.decode("ascii").isprintable() or b" " in key or len(key) > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} ASCII characters, and no space")
    if key.startswith(PREFIX):
        raise ValueError("it begins as the keys that are made here do, and is none")
    if key.count(b".") == 2:
        raise ValueError("it has the form of a JWT, which needs no import: see --jwt-keys")
    if len(key) < MIN_IMPORTED_CHARS or len(set(key)) < MIN_DIFFERENT_CHARS:
        has = f"it has {len(key)} characters, {len(set(key))} different ones"
        least = f"{MIN_IMPORTED_CHARS} and {MIN_DIFFERENT_CHARS}"
        raise ValueError(f"it could be guessed from its hash: {has}, of {least} that random ones have")


def digest_of(key: bytes, salt: bytes) -> bytes:
    return blake2s(key, key=salt).digest()


def make_key(id_bytes: bytes, secret: bytes) -> bytes:
    """Of ID_DIGITS / 2 and NUM_SECRET_BYTES random bytes."""
    return b"%b%b-%b" % (PREFIX, id_bytes.hex().encode(), urlsafe_b64encode(secret).rstrip(b"="))
