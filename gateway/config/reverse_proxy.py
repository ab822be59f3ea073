"""The options of standing behind other proxies; all are fields of `Config`."""

from typing import Annotated, Literal

import msgspec

from gateway.config.models import Models
from gateway.config.options import option
from gateway.http.networks import check_peers


class Behind(Models, frozen=True, kw_only=True, forbid_unknown_fields=True):
    trusted_proxies: Annotated[
        list[str],
        option(
            "Network or address of proxies that are believed about whose request it is (X-Forwarded-For, "
            "-Proto, -Host, Forwarded, the PROXY protocol), as in 10.0.0.0/8, or 'unix' for our Unix socket. "
            "The client's address is then logged, and told to workers. Nobody else's word goes on to them.",
            "network",
        ),
    ] = msgspec.field(default_factory=list)
    forwarded_header: Annotated[
        Literal["auto", "x-forwarded-for", "forwarded"],
        option(
            "Which of the two those proxies write; the other one may be a client's. auto: X-Forwarded-For "
            "where it is there."
        ),
    ] = "auto"
    proxy_protocol: Annotated[
        bool,
        option(
            "Connections of trusted proxies may begin with a PROXY header, version 1 or 2, before TLS too. "
            "Off: it is no HTTP."
        ),
    ] = False
    base_path: Annotated[
        str,
        option(
            "All routes for clients are under this path, as where a proxy hands on one path of a site; "
            "/health and /ready are there without it too.",
            "path",
            pattern=r"^(/[A-Za-z0-9_.~-]+)*$",
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_peers("trusted_proxies", self.trusted_proxies)
