"""Fake token issuer: its keys, their JWKS, and tokens with any claims."""

import json
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import jwt as pyjwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from gateway.tenancy.auth.jwt import JwtVerifier

ISSUER, AUDIENCE = "https://issuer.example", "kvgate"
KINDS = {
    "rsa": "RS256",
    "other-rsa": "RS256",
    "short": "RS256",
    "ec": "ES256",
    "ec384": "ES384",
    "ed": "EdDSA",
}


@cache
def private(name: str) -> Any:
    match name:
        case "rsa" | "other-rsa":
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        case "short":
            return rsa.generate_private_key(public_exponent=65537, key_size=1024)
        case "ec":
            return ec.generate_private_key(ec.SECP256R1())
        case "ec384":
            return ec.generate_private_key(ec.SECP384R1())
    return ed25519.Ed25519PrivateKey.generate()


def public(name: str, **more: Any) -> dict[str, Any]:
    """Public key as a JWK."""
    algorithm = get_default_algorithms()[KINDS[name]]
    jwk = dict(json.loads(algorithm.to_jwk(private(name).public_key())))  # type: ignore[call-overload]
    jwk.pop("key_ops", None)
    return {name: value for name, value in (jwk | {"kid": name} | more).items() if value is not None}


def jwks(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


NULL = object()


def token(signed_by: str = "rsa", headers: Mapping[str, Any] | None = None, **claims: Any) -> bytes:
    """Valid token with changed claims; None leaves a claim out, NULL is a claim that is null."""
    now = int(time.time())
    given = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 3600, "tenant": "acme"} | claims
    given = {name: None if value is NULL else value for name, value in given.items() if value is not None}
    head = {"kid": signed_by} | dict(headers or {})
    algorithm = head.pop("alg", KINDS[signed_by])
    head = {name: value for name, value in head.items() if value is not None}
    return pyjwt.encode(given, private(signed_by), algorithm, headers=head).encode()


class FastClock:
    """Clock beside the real one, which PyJWT looks at."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def jwt_verifier(*keys: dict[str, Any], clock: FastClock | None = None, **options: Any) -> JwtVerifier:
    jwt = JwtVerifier(
        **{
            "algorithms": ["RS256", "ES256"],
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "leeway_s": 30.0,
            "tenant_claim": "tenant",
            "models_claim": "models",
            "salt_of": lambda tenant: f"salt of {tenant}",
            "clock": clock or FastClock(),
            **options,
        }
    )
    jwt.use(jwks(*(keys or (public("rsa"), public("ec")))))
    return jwt
