"""Tables `[worker]` and `[workers."URL"]`: access to all workers, and to one."""

import re
from typing import Annotated

import msgspec

from gateway.config.options import Section, option
from gateway.http.address import worker_url
from gateway.http.networks import network
from gateway.http.url import shown

MAX_BLOCK_SIZE = 1 << 20
"""Tokens of a block at most; those of hybrid models have some thousand."""


class WorkerTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one worker, of one prefill or decode worker, or of each address of one dns+ name.

    `key_file`, or `key_env` (a variable's name), is its API key: for probes, and in place of the client's.
    `server_name` is the name in its certificate. `block_size` is that of its cache, in tokens, whatever its
    metrics and KV events say. `events_port` and `replay_port` are where it publishes and replays KV events
    (plus DP rank), whatever it reports. The others are as the options of that name.
    """

    key_file: str = ""
    key_env: str = ""
    server_name: str = ""
    engine: str = ""
    connector: str = ""
    topology: str = ""
    agent: str = ""
    block_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_SIZE)] = 0
    events_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    replay_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class WorkerSection(Section, frozen=True):
    key_file: Annotated[
        str,
        option(
            "File with the API key that the workers were started with, for probes. Clients send their own, "
            "which kvgate passes on.",
            "path",
        ),
    ] = ""
    ca_file: Annotated[
        str,
        option(
            "CA certificates (PEM) that verify workers with https URLs, in place of the system's. "
            "Verification cannot be turned off.",
            "path",
        ),
    ] = ""
    cert_file: Annotated[
        str, option("Client certificate chain (PEM) for workers that require one.", "path")
    ] = ""
    cert_key_file: Annotated[
        str,
        option(
            "Private key of that certificate, unencrypted PEM; default: in the same file.",
            "path",
            is_rare=True,
        ),
    ] = ""
    networks: Annotated[
        list[str],
        option(
            "Network that may contain workers, however their addresses become known (configuration, admin "
            "API, DNS, engines' reports of KV events), or directory, as in /run/vllm, below which the admin "
            "API and engines (ipc://) may name Unix sockets. By default all networks but link-local "
            "addresses, cloud metadata services, multicast and unspecified addresses, which have to be "
            "listed here, and no directory.",
            "network or path",
        ),
    ] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for text in self.ip_networks:
            try:
                network(text)
            except ValueError as exc:
                raise ValueError(f"worker_networks: {exc}") from exc

    @property
    def ip_networks(self) -> list[str]:
        return [each for each in self.networks if not each.startswith("/")]

    @property
    def socket_dirs(self) -> list[str]:
        """Directories in which there may be workers' Unix sockets."""
        return [each for each in self.networks if each.startswith("/")]


def check_urls(urls: dict[str, WorkerTable]) -> None:
    """Check that each `[workers."URL"]` is a worker's URL in its normal form. Raises ValueError."""
    for url in urls:
        try:
            if worker_url(url) != url:
                raise ValueError(f"'{url}' is kept as '{worker_url(url)}'; write it so")
        except ValueError as exc:
            raise ValueError(f"workers: {exc}") from exc


_PORT = re.compile(r"(events_port|replay_port)=([0-9]{1,5})")


def without_ports(text: str) -> tuple[str, dict[str, int]]:
    """Split a worker's URL as it is given, with the ports of its KV events behind a "#", as in
    http://10.0.0.1:8000#events_port=5558&replay_port=6558. Raises ValueError."""
    url, mark, rest = text.partition("#")
    if not mark:
        return text, {}
    ports = {}
    for part in rest.split("&"):
        found = _PORT.fullmatch(part)
        if found is None or not 0 < int(found[2]) <= 65535:
            raise ValueError(f"'{shown(text)}': after '#', give events_port=PORT, replay_port=PORT or both")
        ports[found[1]] = int(found[2])
    return worker_url(url), ports
