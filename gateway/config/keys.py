"""The options of who may ask, and how tenants' caches are kept apart; all are fields of `Config`."""

from typing import Annotated, Literal

from gateway.config.reaching import Reaching
from gateway.options import option


class Keyed(Reaching, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key_file: Annotated[
        str,
        option(
            "File of API keys, a line of JSON each, as `kvgate key new` prints it: whoever has none is "
            "refused with 401. Read anew when it changes and on SIGHUP; see docs/keys.md.",
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
    admin_key: Annotated[
        Literal["off", "changes", "all"],
        option(
            "What of the admin API wants a key with admin scope: what changes something, or all but /health "
            "and /ready (a scraper then sends one too). off: its address alone guards it."
        ),
    ] = "off"
    tenant_salt: Annotated[
        bool,
        option(
            "Each request goes to its worker with a cache_salt of its tenant's, in place of the client's: "
            "nobody can tell by timing what another tenant has asked. It costs the hits between tenants, see "
            "kvgate_salt_given_up_tokens_total."
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
