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
from gateway.tenancy.auth.jwt import MAX_TOKEN_BYTES, JwtVerifier
from tests.support.token_issuers import (
    AUDIENCE,
    ISSUER,
    NULL,
    FastClock,
    jwks,
    jwt_verifier,
    private,
    public,
    token,
)


def refusal(jwt: JwtVerifier, shown: bytes) -> str:
    with pytest.raises(Unauthorized) as caught:
        jwt.caller(shown)
    assert shown.decode("latin-1")[-20:] not in caught.value.message
    return f"{caught.value.code}: {caught.value.message}"


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


# accepted tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rsa", "ec"])
def test_a_valid_token_has_its_tenant(name: str) -> None:
    caller = jwt_verifier().caller(token(name, models=["m", "n"]))
    assert (caller.tenant, caller.models, caller.salt) == ("acme", {"m", "n"}, "salt of acme")
    assert not caller.is_admin
    assert jwt_verifier().caller(token(name)).models is None
    assert jwt_verifier().caller(token(name, models="m n")).models == {"m", "n"}
    assert jwt_verifier().caller(token(name, aud=["other", AUDIENCE])).tenant == "acme"


def test_a_token_without_a_key_id_uses_the_only_key() -> None:
    unnamed = token("rsa", {"kid": None})
    assert jwt_verifier(public("rsa")).caller(unnamed).tenant == "acme"
    assert jwt_verifier(public("rsa", kid=None)).caller(unnamed).tenant == "acme"
    assert "signing key is unknown" in refusal(jwt_verifier(), unnamed)


def test_other_algorithms_are_accepted_where_configured() -> None:
    jwt = jwt_verifier(public("ed"), public("ec384"), public("rsa"), algorithms=["EdDSA", "ES384", "PS256"])
    for shown in (token("ed"), token("ec384"), token("rsa", {"alg": "PS256"})):
        assert jwt.caller(shown).tenant == "acme"
    assert "is not allowed" in refusal(jwt, token("rsa"))


def test_clocks_may_differ_slightly() -> None:
    now = int(time.time())
    assert jwt_verifier().caller(token(exp=now - 5, nbf=now + 5)).tenant == "acme"


def test_names_of_claims_are_configurable() -> None:
    jwt = jwt_verifier(tenant_claim="https://x/org", models_claim="scope")
    caller = jwt.caller(token(**{"https://x/org": "b", "scope": "m", "tenant": None}))
    assert (caller.tenant, caller.models) == ("b", {"m"})


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
        ({"iss": "https://evil.example"}, "invalid_token: the token is from another issuer"),
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
def test_wrong_claims_are_rejected(claims: dict[str, Any], words: str) -> None:
    assert refusal(jwt_verifier(), token(**claims)).startswith(words)


def test_a_token_without_a_signature_or_with_a_shared_secret_is_rejected() -> None:
    jwt, good = jwt_verifier(), token()
    claims = good.split(b".")[1]
    for name in ("none", "None", "NONE", "", None, 5):
        unsigned = part({"alg": name, "kid": "rsa"}) + b"." + claims + b"."
        assert "is not allowed" in refusal(jwt, unsigned)
    pem = private("rsa").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = part({"alg": "HS256", "kid": "rsa"}) + b"." + claims
    by_public_key = base64.urlsafe_b64encode(hmac.digest(pem, signed, "sha256")).rstrip(b"=")
    assert "is not allowed" in refusal(jwt, signed + b"." + by_public_key)


def test_a_changed_token_or_another_signature_is_rejected() -> None:
    head, claims, signature = token().split(b".")
    jwt = jwt_verifier()
    changed = part({"iss": ISSUER, "aud": AUDIENCE, "exp": 9_000_000_000, "tenant": "b"})
    assert "signature is wrong" in refusal(jwt, b".".join([head, changed, signature]))
    assert "signature is wrong" in refusal(jwt, token("other-rsa", {"kid": "rsa"}))
    assert "signing key is unknown" in refusal(jwt, token("rsa", {"kid": "ec"}))  # a key of another type
    assert "signature is wrong" in refusal(jwt, b".".join([head, claims, b"AAAA"]))


@pytest.mark.parametrize(
    "shown",
    [b"..", b"a.b.c", b"\xff.\xff.\xff", part(5) + b".x.y", part({"alg": "RS256", "kid": ["x"]}) + b".x.y"],
)
def test_a_malformed_token_is_rejected(shown: bytes) -> None:
    assert refusal(jwt_verifier(), shown).startswith("invalid_token: ")


def test_a_long_token_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "too long" in refusal(jwt_verifier(), b"a." * MAX_TOKEN_BYTES)


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
def test_unusable_keys_are_ignored(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no public key for ES256, RS256"):
        jwt_verifier(key)
    assert jwt_verifier(key, public("ec")).num_keys == 1


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys":5}', b"\xff"])
def test_an_invalid_jwks_changes_nothing(text: bytes) -> None:
    jwt = jwt_verifier()
    with pytest.raises(ValueError, match="not a JWKS"):
        jwt.use(text)
    assert jwt.caller(token()).tenant == "acme"


def test_an_unknown_key_triggers_a_fetch() -> None:
    asked: list[int] = []
    jwt = jwt_verifier(public("ec"), want_keys=lambda: asked.append(1))
    assert "retry in a few seconds" in refusal(jwt, token("rsa"))
    assert asked == [1]
    jwt.use(jwks(public("ec"), public("rsa")))
    assert jwt.caller(token("rsa")).tenant == "acme" and asked == [1]


# remembered tokens ------------------------------------------------------------------------------------


def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jwt, shown, times = jwt_verifier(), token(), []
    decode = pyjwt.decode
    monkeypatch.setattr(pyjwt, "decode", lambda *a, **k: times.append(1) or decode(*a, **k))
    first = jwt.caller(shown)
    assert jwt.caller(shown) is first and len(times) == 1
    jwt.use(jwks(public("rsa"), public("ec")))  # the same keys
    assert jwt.caller(shown) is first
    jwt.forget()
    assert jwt.caller(shown) is not first and len(times) == 2
    assert shown not in jwt._known and all(len(name) == 32 for name in jwt._known)


def test_a_remembered_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FastClock()
    jwt, shown = jwt_verifier(clock=clock), token(exp=int(time.time()) + 100)
    jwt.caller(shown)
    clock.ahead_s = 120.0  # within the allowed clock difference
    jwt.caller(shown)
    clock.ahead_s = 140.0
    assert refusal(jwt, shown) == "expired_token: the token has expired"
    assert not jwt._known


def test_a_token_of_a_removed_key_is_forgotten() -> None:
    jwt, shown = jwt_verifier(), token("rsa")
    jwt.caller(shown)
    jwt.use(jwks(public("ec")))
    assert "signing key is unknown" in refusal(jwt, shown)


def test_remembered_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    jwt = jwt_verifier()
    for number in range(4):
        jwt.caller(token("ec", jti=str(number)))
    assert len(jwt._known) == 2
    assert repr(jwt) == f"JwtVerifier({ISSUER}, 2 keys, 2 tokens known)"


def test_keys_of_an_issuer_are_bounded() -> None:
    jwt = jwt_verifier()
    with pytest.raises(ValueError, match="101 keys, at most 100 are allowed"):
        jwt.use(jwks(*[public("rsa")] * 101))
    assert jwt.num_keys == 2


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"Models": ["a"]}, "claim 'Models' must be spelled 'models'"),
        ({"MODELS": "a", "models": ["a"]}, "'MODELS' must be spelled 'models'"),
        ({" models": ["a"]}, "' models' must be spelled 'models'"),
        ({"model": ["a"]}, "claim 'model' must be spelled 'models'"),
        ({"Mod-els": ["a"]}, "must be spelled 'models'"),
        ({"Tenant": "other"}, "'Tenant' must be spelled 'tenant'"),
        ({"NBF": 99999999999}, "must be spelled 'nbf'"),
        ({"Exp": 1}, "must be spelled 'exp'"),
        ({"Models" + "\u2028" * 5: ["a"]}, "must be spelled 'models'"),
    ],
)
def test_a_misspelt_claim_never_means_everything(
    claims: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    jwt = jwt_verifier()
    assert words in refusal(jwt, token(**claims))
    refusal(jwt, token(**claims))
    assert caplog.text.count("refused: the token's claim") == 1 and "eyJ" not in caplog.text


def test_a_list_of_models_beside_a_similar_claim_is_read() -> None:
    caller = jwt_verifier().caller(token(models=["a"], model="preferred"))
    assert caller.models == {"a"}


def test_a_named_claim_of_models_must_be_there() -> None:
    jwt = jwt_verifier(models_claim="https://x/allowed_models", needs_models=True)
    assert "has no claim 'https://x/allowed_models' that lists models" in refusal(jwt, token())
    assert "must be spelled" in refusal(jwt, token(**{"https://x/allowed-model": ["a"]}))
    assert jwt.caller(token(**{"https://x/allowed_models": "a b"})).models == {"a", "b"}
    assert jwt_verifier().caller(token()).models is None, "the default name: without a list, all"
