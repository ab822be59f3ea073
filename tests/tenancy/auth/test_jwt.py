"""JWTs that are accepted, with their tenants, and the distinct errors of all others."""

import base64
import hmac
import json
import time
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.core.errors import Unauthorized
from gateway.tenancy.auth import jwt as module
from gateway.tenancy.auth.jwt import MAX_TOKEN_BYTES, Jwt
from tests.tenancy.auth.issuers import AUDIENCE, ISSUER, NULL, jwks, private, public, token


class Clock:
    """Clock beside the real one, which PyJWT looks at."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def made(*keys: dict[str, Any], clock: Clock | None = None, **options: Any) -> Jwt:
    jwt = Jwt(
        **{
            "algorithms": ["RS256", "ES256"],
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "leeway_s": 30.0,
            "tenant_claim": "tenant",
            "models_claim": "models",
            "salt_of": lambda tenant: f"salt of {tenant}",
            "clock": clock or Clock(),
            **options,
        }
    )
    jwt.use(jwks(*(keys or (public("rsa"), public("ec")))))
    return jwt


def refusal(jwt: Jwt, shown: bytes) -> str:
    with pytest.raises(Unauthorized) as caught:
        jwt.who(shown)
    assert shown.decode("latin-1")[-20:] not in caught.value.message
    return f"{caught.value.code}: {caught.value.message}"


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


# accepted tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rsa", "ec"])
def test_a_good_token_is_its_tenants(name: str) -> None:
    who = made().who(token(name, models=["m", "n"]))
    assert (who.tenant, who.models, who.salt) == ("acme", {"m", "n"}, "salt of acme")
    assert not who.is_admin
    assert made().who(token(name)).models is None
    assert made().who(token(name, models="m n")).models == {"m", "n"}
    assert made().who(token(name, aud=["other", AUDIENCE])).tenant == "acme"


def test_a_token_that_names_no_key_means_the_only_one() -> None:
    unnamed = token("rsa", {"kid": None})
    assert made(public("rsa")).who(unnamed).tenant == "acme"
    assert made(public("rsa", kid=None)).who(unnamed).tenant == "acme"
    assert "signing key is unknown" in refusal(made(), unnamed)


def test_other_algorithms_where_they_are_allowed() -> None:
    jwt = made(public("ed"), public("ec384"), public("rsa"), algorithms=["EdDSA", "ES384", "PS256"])
    for shown in (token("ed"), token("ec384"), token("rsa", {"alg": "PS256"})):
        assert jwt.who(shown).tenant == "acme"
    assert "is not allowed" in refusal(jwt, token("rsa"))


def test_clocks_may_differ_by_a_little() -> None:
    now = int(time.time())
    assert made().who(token(exp=now - 5, nbf=now + 5)).tenant == "acme"


def test_claims_are_named_as_the_issuer_names_them() -> None:
    jwt = made(tenant_claim="https://x/org", models_claim="scope")
    who = jwt.who(token(**{"https://x/org": "b", "scope": "m", "tenant": None}))
    assert (who.tenant, who.models) == ("b", {"m"})


# rejected tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"exp": 1_000_000_000}, "expired_token: the token has expired"),
        ({"exp": None}, "invalid_token: the token has no claim 'exp'"),
        ({"exp": "soon"}, "invalid_token: the token cannot be read"),
        ({"nbf": 9_000_000_000, "exp": 9_000_000_001}, "invalid_token: the token is not valid yet"),
        ({"aud": "another"}, "invalid_token: the token is for another audience"),
        ({"aud": None}, "invalid_token: the token has no claim 'aud'"),
        ({"iss": "https://evil.example"}, "invalid_token: the token is of another issuer"),
        ({"iss": None}, "invalid_token: the token has no claim 'iss'"),
        ({"tenant": None}, "invalid_token: the token has no claim 'tenant' that names a tenant"),
        ({"tenant": 5}, "invalid_token: the token has no claim 'tenant' that names a tenant"),
        ({"tenant": "*"}, "invalid_token: the token's claim 'tenant': tenant: '*' is reserved"),
        ({"models": NULL}, "invalid_token: the token's claim 'models' lists no models"),
        ({"models": []}, "invalid_token: the token's claim 'models' lists no models"),
        ({"models": ""}, "invalid_token: the token's claim 'models' lists no models"),
        ({"models": [5]}, "invalid_token: the token's claim 'models' lists no models"),
        ({"models": {"m": 1}}, "invalid_token: the token's claim 'models' lists no models"),
    ],
)
def test_claims_that_are_wrong(claims: dict[str, Any], words: str) -> None:
    assert refusal(made(), token(**claims)).startswith(words)


def test_no_algorithm_and_no_secret_is_ever_meant() -> None:
    jwt, good = made(), token()
    claims = good.split(b".")[1]
    for name in ("none", "None", "NONE", "", None, 5):
        unsigned = part({"alg": name, "kid": "rsa"}) + b"." + claims + b"."
        assert "is not allowed" in refusal(jwt, unsigned)
    pem = private("rsa").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = part({"alg": "HS256", "kid": "rsa"}) + b"." + claims
    by_public_key = base64.urlsafe_b64encode(hmac.digest(pem, signed, "sha256")).rstrip(b"=")
    assert "is not allowed" in refusal(jwt, signed + b"." + by_public_key)


def test_what_was_changed_or_signed_by_another_is_refused() -> None:
    head, claims, signature = token().split(b".")
    jwt = made()
    changed = part({"iss": ISSUER, "aud": AUDIENCE, "exp": 9_000_000_000, "tenant": "b"})
    assert "signature is wrong" in refusal(jwt, b".".join([head, changed, signature]))
    assert "signature is wrong" in refusal(jwt, token("other-rsa", {"kid": "rsa"}))
    assert "signing key is unknown" in refusal(jwt, token("rsa", {"kid": "ec"}))  # of another kind
    assert "signature is wrong" in refusal(jwt, b".".join([head, claims, b"AAAA"]))


@pytest.mark.parametrize(
    "shown",
    [b"..", b"a.b.c", b"\xff.\xff.\xff", part(5) + b".x.y", part({"alg": "RS256", "kid": ["x"]}) + b".x.y"],
)
def test_what_is_no_token(shown: bytes) -> None:
    assert refusal(made(), shown).startswith("invalid_token: ")


def test_a_long_one_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "too long" in refusal(made(), b"a." * MAX_TOKEN_BYTES)


# keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa", "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"},
        public("rsa", use="enc"),
        public("rsa", alg="RS512"),
        public("rsa", alg="HS256"),
        public("rsa", n=None),
        public("rsa", d="AQAB"),
        public("short"),
        public("ec384"),
        {},
    ],
)
def test_keys_that_verify_nothing_here(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no public key for ES256, RS256"):
        made(key)
    assert made(key, public("ec")).num_keys == 1


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys":5}', b"\xff"])
def test_what_is_no_jwks_changes_nothing(text: bytes) -> None:
    jwt = made()
    with pytest.raises(ValueError, match="not a JWKS"):
        jwt.use(text)
    assert jwt.who(token()).tenant == "acme"


def test_an_unknown_key_triggers_a_fetch() -> None:
    asked: list[int] = []
    jwt = made(public("ec"), want_keys=lambda: asked.append(1))
    assert "retry in a few seconds" in refusal(jwt, token("rsa"))
    assert asked == [1]
    jwt.use(jwks(public("ec"), public("rsa")))
    assert jwt.who(token("rsa")).tenant == "acme" and asked == [1]


# remembered tokens ------------------------------------------------------------------------------------


def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jwt, shown, times = made(), token(), []
    decode = pyjwt.decode
    monkeypatch.setattr(module.pyjwt, "decode", lambda *a, **k: times.append(1) or decode(*a, **k))
    first = jwt.who(shown)
    assert jwt.who(shown) is first and len(times) == 1
    jwt.use(jwks(public("rsa"), public("ec")))  # the same keys
    assert jwt.who(shown) is first
    jwt.forget()
    assert jwt.who(shown) is not first and len(times) == 2
    assert shown not in jwt._known and all(len(name) == 32 for name in jwt._known)


def test_one_that_is_remembered_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    jwt, shown = made(clock=clock), token(exp=int(time.time()) + 100)
    jwt.who(shown)
    clock.ahead_s = 120.0  # within what clocks may differ by
    jwt.who(shown)
    clock.ahead_s = 140.0
    assert refusal(jwt, shown) == "expired_token: the token has expired"
    assert not jwt._known


def test_one_whose_key_was_taken_away_is_not_remembered() -> None:
    jwt, shown = made(), token("rsa")
    jwt.who(shown)
    jwt.use(jwks(public("ec")))
    assert "signing key is unknown" in refusal(jwt, shown)


def test_many_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    jwt = made()
    for number in range(4):
        jwt.who(token("ec", jti=str(number)))
    assert len(jwt._known) == 2
    assert repr(jwt) == f"Jwt({ISSUER}, 2 keys, 2 tokens known)"


def test_an_issuer_has_a_few_keys() -> None:
    jwt = made()
    with pytest.raises(ValueError, match="101 keys, at most 100 are allowed"):
        jwt.use(jwks(*[public("rsa")] * 101))
    assert jwt.num_keys == 2
