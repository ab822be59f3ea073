"""The options of how workers are reached, probed and heard of; all are fields of `Config`."""

from typing import Annotated, Literal

import msgspec

from gateway.config.options import option
from gateway.config.redis import Sharing


class Reaching(Sharing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connect_timeout_s: Annotated[
        float, option("For a connection to a worker; then another worker is tried.", "seconds", gt=0)
    ] = 5.0
    first_byte_timeout_s: Annotated[
        float,
        option(
            "For the first byte of an answer; 0: none, long prompts and queues take minutes.",
            "seconds",
            ge=0,
        ),
    ] = 0.0
    idle_timeout_s: Annotated[
        float,
        option(
            "Between two pieces of an answer; streams may run for hours as long as they move. 0: none.",
            "seconds",
            ge=0,
        ),
    ] = 600.0
    total_timeout_s: Annotated[
        float, option("For a whole answer; 0: none, streams of 30 minutes are normal.", "seconds", ge=0)
    ] = 0.0
    pool_idle_s: Annotated[
        float,
        option("How long an unused worker connection is kept; vLLM closes its end at 5 s.", "seconds", gt=0),
    ] = 4.0
    max_attempts: Annotated[
        int,
        option(
            "Workers that one request may reach, as long as no byte was answered: one more than the first. "
            "Those that refuse the connection are not counted.",
            "workers",
            ge=1,
        ),
    ] = 2
    probe_interval_s: Annotated[
        float, option("Between two health probes (and load scrapes) of a worker.", "seconds", gt=0)
    ] = 2.0
    probe_timeout_s: Annotated[
        float,
        option("For one answer to a probe; a busy engine's /metrics can take a second.", "seconds", gt=0),
    ] = 5.0
    events: Annotated[
        Literal["auto", "off"],
        option("Subscribe to the KV events that workers publish, or route on our own decisions only."),
    ] = "auto"
    events_port: Annotated[
        int,
        option(
            "Where workers publish KV events (plus DP rank) if they cannot tell: vLLM's default.",
            "port",
            ge=1,
            le=65535,
        ),
    ] = 5557
    replay_port: Annotated[
        int,
        option("Where such workers replay events (plus DP rank); 0: they do not.", "port", ge=0, le=65535),
    ] = 0
    agent_port: Annotated[
        int,
        option(
            "Port of `kvgate agent` on each worker's host: a gateway that starts late is exact at once, "
            "where the engine replays its latest events only. 0: there are none. Where several workers "
            "share a host see --agent.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    agent: Annotated[
        list[str],
        option(
            "WORKER=HOST:PORT, the agent of one worker by its URL, as in "
            "http://10.0.0.1:8000=10.0.0.1:7070; goes before --agent-port.",
            "url",
        ),
    ] = msgspec.field(default_factory=list)
    agent_ca_file: Annotated[
        str,
        option(
            "Certificates (PEM) by which agents are verified; with it, they are spoken to over TLS.", "path"
        ),
    ] = ""
    agent_cert_file: Annotated[
        str, option("Certificate chain (PEM) shown to agents that ask for one.", "path")
    ] = ""
    agent_cert_key_file: Annotated[
        str, option("Its private key, unencrypted PEM, where it is not in the same file.", "path")
    ] = ""
    agent_token_file: Annotated[
        str, option("File with the token that agents want to be shown (their --token-file).", "path")
    ] = ""
    assumed_keep_s: Annotated[
        float,
        option(
            "How long a worker without events is assumed to hold what we sent it. Too long credits "
            "evicted blocks, too short forgets held ones.",
            "seconds",
            gt=0,
        ),
    ] = 600.0
    verify: Annotated[
        Literal["off", "auto", "all"],
        option(
            "Streams whose client does not ask for usage: ask for it, and take it out again, so that "
            "predictions are compared with what the engine had cached. auto: of workers that are new or were "
            "wrong lately, else of one in 16, and only where the engine is known to understand it."
        ),
    ] = "auto"
    worker_key_file: Annotated[
        str,
        option(
            "File with the API key that the workers were started with; used for probes. Clients send "
            "their own, which is passed on.",
            "path",
        ),
    ] = ""
    worker_ca_file: Annotated[
        str,
        option(
            "Certificates (PEM) by which workers with https URLs are verified, in place of the system's. "
            "Verification cannot be turned off.",
            "path",
        ),
    ] = ""
    worker_cert_file: Annotated[
        str, option("Certificate chain (PEM) shown to workers that ask for one.", "path")
    ] = ""
    worker_cert_key_file: Annotated[
        str, option("Its private key, unencrypted PEM, where it is not in the same file.", "path")
    ] = ""
    tokenize_timeout_s: Annotated[
        float,
        option(
            "For a worker to tokenize a prompt that is not tokenized here; then it is routed on load. An "
            "idle one answers within milliseconds; a request must not wait longer for its routing than "
            "that saves it.",
            "seconds",
            gt=0,
        ),
    ] = 0.05
