"""The options of how workers come, warm up, are left out and go; all are fields of `Config`."""

from typing import Annotated

import msgspec

from gateway.config.observability import Telling
from gateway.config.options import option
from gateway.http.address import worker_url
from gateway.http.networks import network


class WorkerTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of one worker, of one prefill or decode worker, or of each address of one dns+ name.

    `key_file`, or `key_env` (a variable's name), is its API key: for probes, and in place of what a client
    sent. `server_name` is by which its certificate is verified. The others are as the options of that name.
    """

    key_file: str = ""
    key_env: str = ""
    server_name: str = ""
    engine: str = ""
    connector: str = ""
    topology: str = ""
    agent: str = ""


class Workers(Telling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    warm_up_s: Annotated[
        float,
        option(
            "How long a worker that joins a running fleet, or comes back to it, gets less than its fair "
            "share of requests: a tenth at first, then more and more. Its cache is empty, and an idle worker "
            "would get all that comes. 0: no warm-up.",
            "seconds",
            ge=0,
        ),
    ] = 10.0
    eject_after_failures: Annotated[
        int,
        option(
            "Requests in a row that a worker fails (it refuses, closes, cuts, or answers 5xx) until it gets "
            "none for a while, though its probes are well. Never the last one of a model. 0: never.",
            "requests",
            ge=0,
        ),
    ] = 5
    eject_s: Annotated[
        float,
        option(
            "For how long then; twice as long each time that it fails again when it is let in, at most 5 "
            "minutes.",
            "seconds",
            gt=0,
        ),
    ] = 10.0
    stalled_after_s: Annotated[
        float,
        option(
            "A worker whose probes are well is left out when its engine has made no step for so long though "
            "requests are there, and what waits there goes elsewhere; it is let in again when steps move. By "
            "the counters of its /metrics: of vLLM. 0: never.",
            "seconds",
            ge=0,
        ),
    ] = 60.0
    workers: Annotated[
        dict[str, WorkerTable],
        option(
            'Tables [workers."URL"], all that is said of one worker: key_file or key_env (its API key), '
            "server_name, engine, connector, topology, agent; docs/concepts/workers.md."
        ),
    ] = msgspec.field(default_factory=dict)
    worker_networks: Annotated[
        list[str],
        option(
            "Networks in which workers may be, wherever their addresses come from (here, the admin API, "
            "DNS, what engines report of their KV events). Without it: all, but link-local ones, metadata "
            "services of clouds, multicast and unspecified ones, which are only where they are named here.",
            "network",
        ),
    ] = msgspec.field(default_factory=list)
    worker_socket_dirs: Annotated[
        list[str],
        option(
            "Directories below which the admin API, and engines for their KV events (ipc://), may name Unix "
            "sockets. Without it: none, but those of --worker and its like.",
            "path",
        ),
    ] = msgspec.field(default_factory=list)
    dns_interval_s: Annotated[
        float,
        option(
            "Between two looks at the addresses of a worker dns+http(s)://NAME:PORT: each is a worker. One "
            "that is gone from there drains; a name that cannot be resolved changes nothing.",
            "seconds",
            gt=0,
        ),
    ] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.worker_networks:
            try:
                network(text)
            except ValueError as exc:
                raise ValueError(f"worker_networks: {exc}") from exc
        for path in self.worker_socket_dirs:
            if not path.startswith("/"):
                raise ValueError(f"worker_socket_dirs: '{path}' is not absolute, as in /run/vllm")
        for url in self.workers:
            try:
                if worker_url(url) != url:
                    raise ValueError(f"'{url}' is kept as '{worker_url(url)}'; write it so")
            except ValueError as exc:
                raise ValueError(f"workers: {exc}") from exc
