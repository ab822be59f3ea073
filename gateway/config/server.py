"""Tables `[server]` and `[tls]`: the port for clients, and the processes behind it."""

from typing import Annotated, Literal

import msgspec

from gateway.config.options import AT_ONCE, CONNECTIONS, REQUESTS, Section, option
from gateway.http.cross_origin import check_origins
from gateway.http.networks import check_peers

MAX_BODY_BYTES = 64 << 20
"""Default limit of a client's body, and the limit of a body that the admin API explains."""


class ServerSection(Section, frozen=True):
    host: Annotated[
        str,
        option("Address for clients; loopback by default, closed to networks.", "address", is_common=True),
    ] = "127.0.0.1"
    port: Annotated[
        int, option("Port for clients; 0: any free one.", "port", ge=0, le=65535, is_common=True)
    ] = 8000
    unix_socket: Annotated[
        str,
        option(
            "Unix socket for clients too, for a proxy or clients on the same host. Replaces one that a dead "
            "process left.",
            "path",
        ),
    ] = ""
    unix_socket_mode: Annotated[
        str,
        option(
            "File permissions of the Unix socket; by default the gateway's own user only.",
            "octal",
            pattern="^0?[0-7]{3}$",
            is_rare=True,
        ),
    ] = "600"
    processes: Annotated[
        int,
        option(
            "Processes that share the port, the load and the admin API; each needs a core and its own "
            "memory. 1 serves about 7,000 small requests/s.",
            "processes",
            ge=1,
            le=64,
            is_common=True,
        ),
    ] = 1
    base_path: Annotated[
        str,
        option(
            "Path in front of all routes for clients, for a reverse proxy that passes on one path of a site; "
            "/health and /ready work without it too.",
            "path",
            pattern=r"^(/[A-Za-z0-9_.~-]+)*$",
        ),
    ] = ""
    cors_origins: Annotated[
        list[str],
        option(
            "Origin of pages that may use the API from a browser, as in https://chat.example.com, or * for "
            "all, without cookies. Empty: none. The admin port and its console stay closed to other origins.",
            "origin",
        ),
    ] = msgspec.field(default_factory=list)
    trusted_proxies: Annotated[
        list[str],
        option(
            "Network or address of reverse proxies with trusted X-Forwarded-For, -Proto, -Host, Forwarded "
            "and PROXY protocol, as in 10.0.0.0/8, or 'unix' for the gateway's Unix socket. The log and the "
            "workers then get the client's address. Other peers' headers are dropped.",
            "network",
        ),
    ] = msgspec.field(default_factory=list)
    forwarded_header: Annotated[
        Literal["auto", "x-forwarded-for", "forwarded"],
        option(
            "Header that those proxies write; the other one may be a client's. auto: X-Forwarded-For where "
            "present.",
            is_rare=True,
        ),
    ] = "auto"
    proxy_protocol: Annotated[
        bool,
        option(
            "Accept a PROXY header, version 1 or 2, on connections of trusted proxies, before TLS too. Off: "
            "it is invalid HTTP."
        ),
    ] = False
    max_body_bytes: Annotated[
        int,
        option(
            "Largest request body; the gateway keeps it until the answer begins, for retries.",
            "bytes",
            ge=1,
            live=CONNECTIONS,
        ),
    ] = MAX_BODY_BYTES
    body_memory_bytes: Annotated[
        int,
        option(
            "Memory for request bodies of one process, each held until its worker begins to answer. "
            "Beyond it clients get 503 with Retry-After, the largest incoming body (of a MiB or more) "
            "first. Parsing a body takes about as much memory again.",
            "bytes",
            ge=1,
            live=REQUESTS,
        ),
    ] = 1 << 30
    head_timeout_s: Annotated[
        float,
        option(
            "Timeout of a request's head, from its first byte, and of the TLS handshake (10 s at most).",
            "seconds",
            gt=0,
            live=CONNECTIONS,
        ),
    ] = 30.0
    body_timeout_s: Annotated[
        float,
        option("Timeout between two pieces of a request's body.", "seconds", gt=0, live=CONNECTIONS),
    ] = 60.0
    min_body_rate: Annotated[
        float,
        option(
            "Minimum rate of a request's body, which must arrive within --body-timeout-s plus the time "
            "for its bytes at this rate; it ends clients that send a byte now and then.",
            "bytes/s",
            gt=0,
            live=CONNECTIONS,
            is_rare=True,
        ),
    ] = 500.0
    keep_alive_s: Annotated[
        float,
        option("Time for which an idle client connection is kept.", "seconds", gt=0, live=CONNECTIONS),
    ] = 75.0
    drain_timeout_s: Annotated[
        float,
        option(
            "Time for running requests to end when the gateway stops; then they are aborted and logged.",
            "seconds",
            ge=0,
            live=AT_ONCE,
        ),
    ] = 30.0
    takeover_socket: Annotated[
        str,
        option(
            "Unix socket over which a newly started gateway takes the listening sockets over from the "
            "running one, which then finishes its requests; the same path for both. Empty: no upgrade in "
            "place.",
            "path",
        ),
    ] = ""
    takeover_drain_s: Annotated[
        float,
        option(
            "Time for running requests to end after another gateway has taken over; long, since nothing "
            "waits for it.",
            "seconds",
            ge=0,
            is_rare=True,
        ),
    ] = 3600.0

    def __post_init__(self) -> None:
        check_peers("trusted_proxies", self.trusted_proxies)
        check_origins("cors_origins", self.cors_origins)


class TlsSection(Section, frozen=True):
    cert_file: Annotated[
        str,
        option(
            "Certificate chain (PEM) for clients; with it, the port accepts TLS (1.2 or newer) only. "
            "Reloaded when it changes.",
            "path",
        ),
    ] = ""
    key_file: Annotated[
        str, option("Private key of that certificate, unencrypted PEM; default: in the same file.", "path")
    ] = ""
