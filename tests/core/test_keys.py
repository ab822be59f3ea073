"""What a key looks like, and whose it is."""

import pytest

from gateway.core.errors import Forbidden
from gateway.core.keys import (
    ID_DIGITS,
    MAX_KEY_BYTES,
    NUM_SECRET_BYTES,
    Entry,
    Ring,
    Who,
    digest_of,
    id_of,
    make_key,
    usable,
)
from gateway.core.worker import Served

SALT = bytes(range(16))
KEY = make_key(bytes.fromhex("0b1c2d3e4f50"), bytes(range(32)))
ACME = Who("acme", "0b1c2d3e4f50")


def ring(key: bytes = KEY, who: Who = ACME) -> Ring:
    return Ring({id_of(key): Entry(SALT, digest_of(key, SALT), who)}, {})


def test_a_key_names_its_line_and_has_256_bits() -> None:
    assert KEY == b"kvg-0b1c2d3e4f50-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert id_of(KEY) == b"0b1c2d3e4f50" and len(id_of(KEY)) == ID_DIGITS
    assert make_key(bytes(6), bytes(NUM_SECRET_BYTES)) != KEY


def test_a_hash_is_worth_nothing_under_another_salt() -> None:
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
        b"xyz-" + KEY[4:],  # its id is known, the whole is hashed
        KEY.replace(b"0b1c", b"0b1d"),
        digest_of(KEY, SALT),
        digest_of(KEY, SALT).hex().encode(),
        b"\0" * 60,
        b"kvg-0b1c2d3e4f50-" + b"A" * 5000,
    ],
)
def test_what_is_not_the_key_is_nobodys(shown: bytes) -> None:
    assert ring().find(shown) is None


def test_the_key_is_its_owners() -> None:
    assert ring().find(KEY) is ACME
    assert Ring({}, {}).find(KEY) is None


def test_long_ones_are_not_hashed() -> None:
    long = KEY + b"A" * (MAX_KEY_BYTES - len(KEY))
    assert ring(long).find(long) is ACME
    assert ring(long + b"A").find(long + b"A") is None


def test_who_may_use_what() -> None:
    everything, some = Who("t"), Who("t", "id", ["m", "n"])
    assert everything.may_use("x") and some.may_use("m") and not some.may_use("x")
    everything.check("x")
    some.check("n")
    with pytest.raises(Forbidden, match="key 'id' may not use the model 'x', only m, n") as caught:
        some.check("x")
    assert (caught.value.status, caught.value.code, caught.value.param) == (403, "model_not_allowed", "model")


def test_no_key_shows_in_what_is_printed() -> None:
    shown = repr(ring()) + repr(ring().find(KEY))
    assert KEY[17:].decode() not in shown and digest_of(KEY, SALT).hex() not in shown
    assert shown == "Ring(1 keys, 0 groups)Who('acme', '0b1c2d3e4f50', admin=False)"


def test_what_somebody_may_use_of_what_is_served() -> None:
    served = {name: Served(name, "root") for name in ("m", "n", "o")}
    assert usable(None, served) is served and usable(Who("t"), served) is served
    assert list(usable(Who("t", "id", ["n", "x"]), served)) == ["n"]
