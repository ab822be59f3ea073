"""Format of API keys, and the lookup of their callers."""

import pytest

from gateway.core.caller import Caller
from gateway.tenancy.auth.api_keys import (
    ID_DIGITS,
    MAX_KEY_BYTES,
    NUM_SECRET_BYTES,
    KeyEntry,
    KeyRing,
    check_imported,
    digest_of,
    finder_of,
    id_of,
    is_ours,
    make_key,
)

SALT = bytes(range(16))
KEY = make_key(bytes.fromhex("0b1c2d3e4f50"), bytes(range(32)))
ACME = Caller("acme", "0b1c2d3e4f50")


def ring(key: bytes = KEY, caller: Caller = ACME) -> KeyRing:
    return KeyRing({id_of(key): KeyEntry(SALT, digest_of(key, SALT), caller)}, {})


def test_a_key_contains_its_id_and_256_bits() -> None:
    assert KEY == b"kvg-0b1c2d3e4f50-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert id_of(KEY) == b"0b1c2d3e4f50" and len(id_of(KEY)) == ID_DIGITS
    assert make_key(bytes(6), bytes(NUM_SECRET_BYTES)) != KEY


def test_a_hash_is_worthless_under_another_salt() -> None:
    assert digest_of(KEY, SALT) != digest_of(KEY, bytes(16))
    assert len(digest_of(KEY, SALT)) == 32


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b"x",
        KEY[:-1],
        KEY + b"A",
        KEY.upper(),
        b"xyz-" + KEY[4:],  # its id is known, but the whole is hashed
        KEY.replace(b"0b1c", b"0b1d"),
        digest_of(KEY, SALT),
        digest_of(KEY, SALT).hex().encode(),
        b"\0" * 60,
        b"kvg-0b1c2d3e4f50-" + b"A" * 5000,
    ],
)
def test_other_keys_have_no_caller(shown: bytes) -> None:
    assert ring().find(shown) is None


def test_a_key_finds_its_caller() -> None:
    assert ring().find(KEY) is ACME
    assert KeyRing({}, {}).find(KEY) is None


def test_a_long_key_is_not_hashed() -> None:
    long = KEY + b"A" * (MAX_KEY_BYTES - len(KEY))
    assert ring(long).find(long) is ACME
    assert ring(long + b"A").find(long + b"A") is None


def test_no_key_is_printed() -> None:
    shown = repr(ring()) + repr(ring().find(KEY))
    assert KEY[17:].decode() not in shown and digest_of(KEY, SALT).hex() not in shown
    assert shown == "KeyRing(1 keys, 0 groups)Caller('acme', '0b1c2d3e4f50', admin=False)"


OLD = b"sk-Zp4q9XvT2mLwK8cRbN7d"


def test_an_imported_key_is_found_by_its_hash() -> None:
    entry = KeyEntry(SALT, digest_of(OLD, SALT), ACME)
    both = KeyRing(
        {b"9d41aa000001": entry, id_of(KEY): KeyEntry(SALT, digest_of(KEY, SALT), Caller("b"))},
        {},
        {finder_of(OLD): entry},
    )
    mine = both.find(KEY)
    assert both.find(OLD) is ACME and mine and mine.tenant == "b"
    for shown in (
        b"",
        OLD[:-1],
        OLD + b"x",
        b"kvg-" + OLD,
        b"kvg-9d41aa000001-",
        finder_of(OLD),
        digest_of(OLD, SALT),
    ):
        assert both.find(shown) is None
    assert ring().find(OLD) is None


def test_a_found_line_must_have_the_same_hash() -> None:
    assert KeyRing({}, {}, {finder_of(OLD): KeyEntry(SALT, bytes(32), ACME)}).find(OLD) is None


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"short", "it has 5 characters, 5 different ones; random keys have at least 20 and 10"),
        (b"password" * 5, "it has 40 characters, 7 different ones"),
        (b"x" * 257, "at most 256 ASCII characters"),
        (OLD + b" and more", "no space"),
        (OLD + "\u00e9".encode(), "ASCII"),
        (OLD + b"\x00", "ASCII"),
        (b"kvg-" + OLD, "starts with 'kvg-' but is not a kvgate key"),
        (b"eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "JWT"),
    ],
)
def test_an_invalid_key_is_not_imported(key: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        check_imported(key)
    assert key[:12].decode("latin-1") not in str(caught.value) or key == b"short"


def test_foreign_keys_can_be_imported_and_own_ones_are_recognized() -> None:
    for key in (OLD, b"3f2b8c1e-9a47-4d06-b5e2-7c1f0a9d8e64", b"sk-proj-" + b"aB3_dE6-gH9jK2mN5pQ8" * 4):
        check_imported(key)
        assert not is_ours(key)
    assert is_ours(KEY) and not is_ours(KEY + b"A") and not is_ours(KEY[:-1])
