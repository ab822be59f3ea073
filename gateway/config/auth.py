"""Tables `[auth]` and `[jwt]`: clients' credentials, and what they keep from one another."""

from typing import Annotated

import msgspec

from gateway.config.options import Section, option

MODELS_CLAIM = "models"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class AuthSection(Section, frozen=True):
    key_file: Annotated[
        str,
        option(
            "File of API keys, a line of JSON each, as `kvgate key new` prints it; clients without a key get "
            "401. Reloaded when it changes and on SIGHUP; see docs/guides/authentication.md.",
            "path",
            is_common=True,
        ),
    ] = ""
    pass_client_key: Annotated[
        bool,
        option(
            "Pass the client's Authorization and x-api-key on to the worker after the gateway has verified "
            "them. Off by default: workers then never see the gateway's keys."
        ),
    ] = False
    tenant_salt_file: Annotated[
        str,
        option(
            "File with a secret of 32 characters or more, the same for all gateways of a fleet, from which "
            "each tenant gets a cache_salt in place of its clients': no tenant can learn by timing what "
            "another one sent. Tenants share no cache hits then: see kvgate_tenant_salt_lost_tokens_total. "
            "Another secret makes every cached block unknown.",
            "path",
        ),
    ] = ""
    mask_cached_tokens: Annotated[
        bool,
        option(
            "Report 0 cached tokens to clients, in answers and streams. The gateway's own metrics keep the "
            "number."
        ),
    ] = False


class JwtSection(Section, frozen=True):
    keys: Annotated[
        str,
        option(
            "JWKS file or URL with the public keys of the JWT issuer: kvgate accepts a token signed with one "
            "in place of an API key. Fetched in the background, never during a request.",
            "path or URL",
        ),
    ] = ""
    algorithms: Annotated[
        list[str],
        option(
            f"Signature algorithms, of {', '.join(ALGORITHMS)}; by default RS256 and ES256. Shared secrets "
            'and "none" are not supported.',
            "name",
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
    issuer: Annotated[str, option("Required `iss` of a token; needed with --jwt-keys.", "URL")] = ""
    audience: Annotated[
        str,
        option(
            "Required `aud` of a token; needed with --jwt-keys: a token for another service is rejected.",
            "name",
        ),
    ] = ""
    tenant_claim: Annotated[
        str, option("Claim with the tenant, required in each token.", "name", is_rare=True)
    ] = "tenant"
    models_claim: Annotated[
        str,
        option(
            "Claim with the list of models that a token permits. Without the claim, a token permits all "
            "models if this option has its default, and is refused if it names another claim.",
            "name",
            is_rare=True,
        ),
    ] = MODELS_CLAIM
    refresh_s: Annotated[
        float,
        option(
            "Interval of fetching the keys; a token signed with an unknown key triggers an earlier fetch, "
            "and is rejected until then.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 300.0

    def __post_init__(self) -> None:
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ValueError(f"jwt_algorithms: '{name}' is not one of {', '.join(ALGORITHMS)}")
