"""JWT verification with the public keys of other issuers, as an alternative to API keys.

    header ─ an allowed algorithm, a known key ─► signature, exp, nbf, iss, aud ─► claims ─► Caller

A claim that is missing may mean "no limit", so a misspelt one is refused: one that has the name of a claim
that is read, but for its case (`Models`), or for the list of models its separators or plural (`model`).

An algorithm belongs to a kind of key: RSA keys verify RS* and PS*, EC keys ES*, Ed25519 keys EdDSA; a key's
own `alg` and `use` narrow that. Keys are never shared secrets, so HS* and "none" cannot be meant.

Verification costs 100 us or more, once per token: afterwards the token is recognized by a digest of it, until
it expires or the keys change. The digest is keyed by a secret that this process drew at its start.
"""

import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2s
from typing import Any

import jwt as pyjwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.core.caller import Caller
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import Unauthorized
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.tenancy.auth.key_format import check_tenant

log = logging.getLogger("kvgate.keys")

MAX_TOKEN_BYTES = 16 << 10
MAX_KNOWN = 4096
LEEWAY_S = 30.0
"""Permitted difference between the issuer's clock and this one."""
"""Verified tokens to remember, some 600 bytes each."""
MAX_KEYS = 100
"""Keys of one issuer; usual ones have a few: each costs some 0.1 ms of the event loop per algorithm."""
MIN_RSA_BITS = 2048
DEFAULT_ALGORITHMS = ("RS256", "ES256")
"""Algorithms that identity providers sign with by default."""
FITTING: Mapping[tuple[str, str], Collection[str]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Algorithms by a key's kind and curve."""

DATES_AND_PARTIES = ("exp", "nbf", "iss", "aud")
MAX_SHOWN_CHARS = 100

SaltOf = Callable[[str], str | None]


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


class JwtVerifier:
    """Verifies JWTs and caches the result. `want_keys` is called where a token names an unknown key."""

    def __init__(
        self,
        *,
        algorithms: Collection[str],
        issuer: str,
        audience: str,
        leeway_s: float = LEEWAY_S,
        tenant_claim: str,
        models_claim: str,
        needs_models: bool = False,
        salt_of: SaltOf,
        clock: Callable[[], float] = time.time,
        want_keys: Callable[[], None] = lambda: None,
    ) -> None:
        self._algorithms = frozenset(algorithms)
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s
        self._tenant_claim = tenant_claim
        self._models_claim = models_claim
        self._needs_models = needs_models
        self._spelling = {name.casefold(): name for name in (*DATES_AND_PARTIES, tenant_claim, models_claim)}
        self._log = RateLimitedLog(log)
        self._salt_of = salt_of
        self._clock = clock
        self.want_keys = want_keys
        self._keys: dict[tuple[str | None, str], pyjwt.PyJWK] = {}
        self._salt = os.urandom(16)
        self._known: OrderedDict[bytes, Caller] = OrderedDict()

    def __repr__(self) -> str:
        return f"JwtVerifier({self._issuer}, {self.num_keys} keys, {len(self._known)} tokens known)"

    @property
    def num_keys(self) -> int:
        return len({kid for kid, _ in self._keys})

    def use(self, text: bytes) -> None:
        """Replace the keys by those of a JWKS. Raises ValueError, with nothing changed."""
        try:
            given = msgspec.json.decode(text, type=_Jwks).keys
        except UNREADABLE as exc:
            raise ValueError(f"not a JWKS: {exc}") from exc
        if len(given) > MAX_KEYS:
            raise ValueError(f"{len(given)} keys, at most {MAX_KEYS} are allowed")
        keys = {name: key for each in given for name, key in self._usable(each)}
        if not keys:
            allowed = ", ".join(sorted(self._algorithms))
            raise ValueError(f"no public key for {allowed}")
        if {n: k._jwk_data for n, k in keys.items()} != {n: k._jwk_data for n, k in self._keys.items()}:
            self._keys = keys
            self.forget()

    def forget(self) -> None:
        """Forget verified tokens, so that each is verified again: their tenants' groups may have changed."""
        self._known.clear()

    def caller(self, token: bytes) -> Caller:
        """Caller of a token. Raises Unauthorized, without the token in its text."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused("the token is too long")
        digest = blake2s(token, key=self._salt).digest()
        caller = self._known.get(digest)
        if caller is None:
            caller = self._verified(token)
            self._known[digest] = caller
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        elif caller.expires_s <= self._clock():
            del self._known[digest]
            raise Unauthorized("the token has expired", code="expired_token")
        return caller

    def _usable(self, given: Mapping[str, Any]) -> list[tuple[tuple[str | None, str], pyjwt.PyJWK]]:
        """Usable keys of a JWK by id and algorithm: none that sign, encrypt, are secret or are too short."""
        kind = str(given.get("kty")), "" if given.get("kty") == "RSA" else str(given.get("crv"))
        fitting = {given["alg"]} & set(FITTING.get(kind, ())) if "alg" in given else FITTING.get(kind, ())
        if given.get("use", "sig") != "sig" or "d" in given:
            return []
        usable = []
        for name in self._algorithms.intersection(fitting):
            try:
                key = pyjwt.PyJWK(dict(given), algorithm=name)
            except pyjwt.PyJWTError:
                continue
            if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
                continue
            usable.append(((given.get("kid"), name), key))
        return usable

    def _verified(self, token: bytes) -> Caller:
        try:
            claims = pyjwt.decode(
                token,
                self._key_of(pyjwt.get_unverified_header(token)),
                algorithms=list(self._algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except pyjwt.ExpiredSignatureError as exc:
            raise Unauthorized("the token has expired", code="expired_token") from exc
        except pyjwt.PyJWTError as exc:
            raise _refused(_why(exc)) from None
        except UNREADABLE:  # in the parts of the token
            raise _refused("the token cannot be read") from None
        try:
            return self._who(claims)
        except Unauthorized as exc:  # signed by the issuer, which has to mend it
            self._log.warning("token of issuer %s refused: %s", self._issuer, exc.message)
            raise

    def _key_of(self, header: Mapping[str, Any]) -> pyjwt.PyJWK:
        """Public key that a token's header names. Raises Unauthorized."""
        name, kid = header.get("alg"), header.get("kid")
        if name not in self._algorithms:
            allowed = ", ".join(sorted(self._algorithms))
            raise _refused(f"the token's signature algorithm is not allowed; use {allowed}")
        if kid is None and self.num_keys == 1:
            (kid,) = {each for each, _ in self._keys}
        key = self._keys.get((kid, name))
        if key is None:
            self.want_keys()
            raise _refused("the token's signing key is unknown; if it is new, retry in a few seconds")
        return key

    def _check_spelling(self, claims: Mapping[str, Any]) -> None:
        """Check that no claim was meant to be one that is read here: left unread it would mean no limit.
        Raises Unauthorized."""
        is_limited, wanted = self._models_claim in claims, _loosely(self._models_claim)
        for name in claims:
            read = self._spelling.get(name.strip().casefold(), name)
            if read == name and not is_limited and _loosely(name) == wanted:
                read = self._models_claim
            if read != name:
                shown = name[:MAX_SHOWN_CHARS]
                raise _refused(f"the token's claim '{shown}' must be spelled '{read}'")
        if self._needs_models and not is_limited:
            raise _refused(f"the token has no claim '{self._models_claim}' that lists models")

    def _who(self, claims: Mapping[str, Any]) -> Caller:
        self._check_spelling(claims)
        tenant, models = claims.get(self._tenant_claim), claims.get(self._models_claim)
        if not isinstance(tenant, str):
            raise _refused(f"the token has no claim '{self._tenant_claim}' that names a tenant")
        try:
            check_tenant(tenant)
        except ValueError as exc:
            raise _refused(f"the token's claim '{self._tenant_claim}': {exc}") from exc
        if isinstance(models, str):
            models = models.split()  # space-separated, as in `scope`
        is_list = isinstance(models, list) and all(isinstance(each, str) for each in models)
        if self._models_claim in claims and not (is_list and models):  # null would mean all
            raise _refused(f"the token's claim '{self._models_claim}' lists no models")
        expires_s = float(claims["exp"]) + self._leeway_s
        return Caller(tenant, "jwt", models, expires_s, False, self._salt_of(tenant))


def _loosely(name: str) -> str:
    """A claim's name without case, separators and plural."""
    return re.sub(r"[\W_]", "", name.casefold()).removesuffix("s")


def _refused(message: str) -> Unauthorized:
    return Unauthorized(message, code="invalid_token")


def _why(exc: pyjwt.PyJWTError) -> str:
    match exc:
        case pyjwt.MissingRequiredClaimError():
            return f"the token has no claim '{exc.claim}'"
        case pyjwt.InvalidAudienceError():
            return "the token is for another audience"
        case pyjwt.InvalidIssuerError():
            return "the token is from another issuer"
        case pyjwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case pyjwt.InvalidSignatureError():
            return "the token's signature is wrong"
    return "the token cannot be read"
