"""Tables `[events]` and `[agent]`: KV events of workers, and the agents beside their engines."""

from typing import Annotated, Literal

import msgspec

from gateway.config.options import Section, option


class EventsSection(Section, frozen=True):
    mode: Annotated[
        Literal["auto", "off"],
        option(
            "Subscription to the KV events that workers publish. off: route by the gateway's own decisions "
            "only.",
            flag="events",
        ),
    ] = "auto"
    port: Annotated[
        int,
        option(
            "Port at which workers publish KV events (plus DP rank) if they do not report it: vLLM's "
            'default. One of several on a host has its own: [workers."URL"] events_port, replay_port.',
            "port",
            ge=1,
            le=65535,
        ),
    ] = 5557
    replay_port: Annotated[
        int,
        option(
            "Port at which such workers replay events (plus DP rank); 0: they do not.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    assumed_keep_s: Annotated[
        float,
        option(
            "Time for which a worker without events is assumed to keep the blocks of its requests. Too long "
            "credits evicted blocks, too short forgets cached ones.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 600.0


class AgentSection(Section, frozen=True):
    port: Annotated[
        int,
        option(
            "Port of `kvgate agent` on each worker's host: a gateway that starts late is exact at once, "
            "although the engine replays only its latest events. 0: no agents. Where several workers share "
            'a host, [workers."URL"] has a key `agent`.',
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    address: Annotated[
        list[str],
        option(
            "WORKER=HOST:PORT, the agent of one worker by its URL, as in "
            "http://10.0.0.1:8000=10.0.0.1:7070; overrides --agent-port.",
            "URL",
            flag="agent",
            is_rare=True,
        ),
    ] = msgspec.field(default_factory=list)
    ca_file: Annotated[
        str,
        option("CA certificates (PEM) that verify agents; with it, connections to them use TLS.", "path"),
    ] = ""
    cert_file: Annotated[
        str, option("Client certificate chain (PEM) for agents that require one.", "path", is_rare=True)
    ] = ""
    cert_key_file: Annotated[
        str,
        option(
            "Private key of that certificate, unencrypted PEM; default: in the same file.",
            "path",
            is_rare=True,
        ),
    ] = ""
    token_file: Annotated[
        str, option("File with the token that agents require (their --token-file).", "path")
    ] = ""
