"""Table `[admin]`: the port for the admin API and metrics."""

from typing import Annotated, Literal

import msgspec

from gateway.config.options import Section, option
from gateway.http.origins import AllowedHosts


class AdminSection(Section, frozen=True):
    host: Annotated[
        str,
        option(
            "Address of the admin API and /metrics; apart from traffic and on loopback. Elsewhere it needs "
            "keys, see --admin-auth.",
            "address",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        option(
            "Port of the admin API and /metrics; 0: any free one.", "port", ge=0, le=65535, is_common=True
        ),
    ] = 9400
    auth: Annotated[
        Literal["auto", "off", "changes", "api", "all"],
        option(
            "Endpoints of the admin port that need a key with admin scope. changes: those that change "
            "something. api: all but /health, /ready and /metrics. all: all but /health and /ready (a "
            "scraper then sends a key too). off: none. auto: off on loopback, else api."
        ),
    ] = "auto"
    key_file: Annotated[
        str,
        option(
            "File of API keys, as --key-file, for the admin API only: clients need none for it. Keys with "
            "admin scope in --key-file open the admin API too.",
            "path",
        ),
    ] = ""
    without_keys: Annotated[
        Literal["refuse", "probes", "open"],
        option(
            "Behaviour of an admin port beyond loopback without keys. refuse: the gateway does not start. "
            "probes: only /health, /ready and /metrics answer. open: anybody who reaches the port may change "
            "the fleet and see what it serves; only for a network of its own."
        ),
    ] = "refuse"
    allowed_hosts: Annotated[
        list[str],
        option(
            "Host name that requests to the admin port may name (the Host header), or *.DOMAIN for all below "
            "one. Addresses, localhost and --admin-host always may; the name of a web page that resolves to "
            "the port (DNS rebinding) may not. /metrics also accepts names that public DNS cannot have.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)
    load_adapters: Annotated[
        bool,
        option(
            "Enable POST and DELETE of /admin/adapters, which load and unload LoRA adapters on workers. "
            "Workers then read any path that the request names; where there are keys, these endpoints need "
            "one with admin scope, whatever --admin-auth is."
        ),
    ] = False
    adapter_timeout_s: Annotated[
        float,
        option(
            "Timeout of loading or unloading an adapter; its weights may come from a hub first.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 120.0
    show_prompt_text: Annotated[
        bool,
        option(
            "Show in /admin/cache-loss the words at which prompts left the cached prefix, not only the "
            "position.",
            is_rare=True,
        ),
    ] = False

    def __post_init__(self) -> None:
        try:
            AllowedHosts(self.allowed_hosts)
        except ValueError as exc:
            raise ValueError(f"admin_allowed_hosts: {exc}") from exc
