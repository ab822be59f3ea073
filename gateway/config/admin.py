"""The options of who may use the admin port; all are fields of `Config`."""

from typing import Annotated, Literal

import msgspec

from gateway.config.lora import Adapters
from gateway.config.options import option
from gateway.http.origins import AllowedHosts


class Administration(Adapters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    admin_key: Annotated[
        Literal["auto", "off", "changes", "api", "all"],
        option(
            "What of the admin port needs a key with admin scope. changes: what changes something. api: all "
            "but /health, /ready and /metrics. all: all but /health and /ready (a scraper then sends one "
            "too). off: nothing. auto: off where the port listens on loopback, else api."
        ),
    ] = "auto"
    admin_api_keys: Annotated[
        str,
        option(
            "File of API keys, as --key-file, of which those with admin scope open the admin API and nothing "
            "else: clients need none for it. Keys with admin scope in --key-file open it too.",
            "path",
        ),
    ] = ""
    admin_without_keys: Annotated[
        Literal["refuse", "probes", "open"],
        option(
            "Where the admin port listens beyond loopback and there are no keys. refuse: the gateway does "
            "not start. probes: only /health, /ready and /metrics are answered. open: everybody who reaches "
            "the port may change the fleet and see what it serves; only for a network of its own."
        ),
    ] = "refuse"
    admin_allowed_hosts: Annotated[
        list[str],
        option(
            "Name by which the admin port may be addressed (the Host header), or *.DOMAIN for all below one. "
            "Addresses, localhost and --admin-host always may; a name of a web page that is made to resolve "
            "to the port (DNS rebinding) may not. For /metrics names that public DNS cannot have pass too.",
            "name",
        ),
    ] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            AllowedHosts(self.admin_allowed_hosts)
        except ValueError as exc:
            raise ValueError(f"admin_allowed_hosts: {exc}") from exc
