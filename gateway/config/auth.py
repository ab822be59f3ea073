"""The options of who may ask, and how tenants' caches are kept apart; all are fields of `Config`."""

from typing import Annotated

import msgspec

from gateway.config.apis import Surface
from gateway.config.options import option

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""With public keys only: who can verify a token with HS256 can make one, and "none" anybody can."""


class Keyed(Surface, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key_file: Annotated[
        str,
        option(
            "File of API keys, a line of JSON each, as `kvgate key new` prints it: whoever has none is "
            "refused with 401. Read anew when it changes and on SIGHUP; see docs/guides/authentication.md.",
            "path",
        ),
    ] = ""
    pass_client_key: Annotated[
        bool,
        option(
            "Send the client's Authorization and x-api-key on to the worker, although the gateway has read "
            "them. Off: a key that opens the gateway is nothing that every worker should see."
        ),
    ] = False
    tenant_salt: Annotated[
        bool,
        option(
            "Each request goes to its worker with a cache_salt of its tenant's, in place of the client's: "
            "nobody can tell by timing what another tenant has asked. It costs the hits between tenants, see "
            "kvgate_tenant_salt_lost_tokens_total."
        ),
    ] = False
    tenant_salt_file: Annotated[
        str,
        option(
            "File with the secret that salts are made with, of 32 characters or more; the same for all "
            "gateways of a fleet. Another one makes all that is cached unknown.",
            "path",
        ),
    ] = ""
    mask_cached_tokens: Annotated[
        bool,
        option(
            "Tell clients 0 in place of how many of their prompt's tokens were cached, in answers and "
            "streams. The gateway's own metrics still have it."
        ),
    ] = False
    jwt_keys: Annotated[
        str,
        option(
            "JWKS file or URL with the public keys of whoever issues JWTs: a token signed with one is "
            "taken in place of an API key. Fetched beside the traffic, never for a request.",
            "path or URL",
        ),
    ] = ""
    jwt_algorithms: Annotated[
        list[str],
        option(
            f"By which tokens may be signed, of {', '.join(ALGORITHMS)}; without it RS256 and ES256. Those "
            'with a shared secret and "none" are no choice.',
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    jwt_issuer: Annotated[str, option("The `iss` that a token must have; needed with --jwt-keys.", "URL")] = (
        ""
    )
    jwt_audience: Annotated[
        str,
        option(
            "The `aud` that a token must have; needed with --jwt-keys: a token for another service is none "
            "for this one.",
            "name",
        ),
    ] = ""
    jwt_tenant_claim: Annotated[str, option("Claim with the tenant; a token must have it.", "name")] = (
        "tenant"
    )
    jwt_models_claim: Annotated[
        str,
        option("Claim with the list of models that a token is good for; one without it is for all.", "name"),
    ] = "models"
    jwt_leeway_s: Annotated[
        float, option("How far the issuer's clock may be from ours.", "seconds", ge=0)
    ] = 30.0
    jwt_refresh_s: Annotated[
        float,
        option(
            "Between two fetches of the keys; one that is signed with an unknown key has them fetched "
            "sooner, and is refused until then.",
            "seconds",
            gt=0,
        ),
    ] = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.jwt_algorithms:
            if name not in ALGORITHMS:
                raise ValueError(f"jwt_algorithms: '{name}' is none of {', '.join(ALGORITHMS)}")
