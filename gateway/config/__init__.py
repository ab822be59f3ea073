"""The configuration: one frozen struct, from flags, environment, file and defaults, in that order.

Each field carries its unit and its reason; `--help` and `docs/options.md` are generated from them.
Unknown fields and wrong types are refused at start with the file and the field. Who the workers are and how
they work together is in `fleet.py`, how one is chosen in `choosing.py`,
who is let in in `flow.py`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gateway.config.flow import Flow
from gateway.core.errors import ConfigError
from gateway.options import convert, from_environment, from_flags, option


class Config(Flow, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[
        str,
        option("Address to listen on; loopback, so that nothing is open to a network unasked.", "address"),
    ] = "127.0.0.1"
    port: Annotated[int, option("Port for clients; 0 takes a free one.", "port", ge=0, le=65535)] = 8000
    unix_socket: Annotated[
        str,
        option(
            "Listen on this Unix socket too, for a proxy or clients on the same host. One that a dead "
            "process left is replaced.",
            "path",
        ),
    ] = ""
    unix_socket_mode: Annotated[
        str,
        option(
            "Who may connect there, as its file's permissions; the gateway's own user only, unless said.",
            "octal",
            pattern="^0?[0-7]{3}$",
        ),
    ] = "600"
    tls_cert_file: Annotated[
        str,
        option(
            "Certificate chain (PEM) for clients; with it, the port speaks TLS (1.2 or newer) only. Read "
            "anew when it changes.",
            "path",
        ),
    ] = ""
    tls_key_file: Annotated[
        str, option("Its private key, unencrypted PEM, where it is not in the same file.", "path")
    ] = ""
    tls_handshake_timeout_s: Annotated[
        float, option("For a client to finish the TLS handshake once connected.", "seconds", gt=0)
    ] = 10.0
    admin_host: Annotated[
        str,
        option("Address of the admin API and /metrics; apart from traffic and on loopback.", "address"),
    ] = "127.0.0.1"
    admin_port: Annotated[
        int, option("Port of the admin API and /metrics; 0 takes a free one.", "port", ge=0, le=65535)
    ] = 9400
    expose_headers: Annotated[
        bool,
        option(
            "Answer with x-kvgate-worker, -overlap-tokens and -decision. Off: they tell a tenant what "
            "others have cached."
        ),
    ] = False
    log_requests: Annotated[
        bool, option("Log a line per request: worker, overlap, TTFT. Never the prompt.")
    ] = False
    record: Annotated[
        str,
        option(
            "Append a line of JSON per finished request, for `kvgate replay`: when, worker, tokens, TTFT, "
            "and the prompt as hashes of its blocks. All streams are then asked for their usage.",
            "path",
        ),
    ] = ""
    record_tokens: Annotated[
        bool, option("Record prompts' token ids too, from which anybody can read the text again.")
    ] = False
    record_max_bytes: Annotated[
        int, option("Size at which the recording ends; the rest is counted, not written.", "bytes", ge=1)
    ] = 1 << 30
    max_body_bytes: Annotated[
        int, option("Largest request body; bodies are kept until answered, for retries.", "bytes", ge=1)
    ] = 64 << 20
    max_head_bytes: Annotated[
        int, option("Largest request head (request line and headers).", "bytes", ge=1024)
    ] = 64 << 10
    head_timeout_s: Annotated[
        float, option("For a request's head to arrive, from its first byte.", "seconds", gt=0)
    ] = 30.0
    body_timeout_s: Annotated[
        float,
        option("Between two pieces of a request's body; for all of it see the next.", "seconds", gt=0),
    ] = 60.0
    min_body_rate: Annotated[
        float,
        option(
            "A request's body may take --body-timeout-s plus its bytes at this rate, as in Apache: a byte "
            "now and then holds no connection for long, and 64 MiB over any real link pass.",
            "bytes/s",
            gt=0,
        ),
    ] = 500.0
    keep_alive_s: Annotated[float, option("How long an idle client connection is kept.", "seconds", gt=0)] = (
        75.0
    )
    show_broken_text: Annotated[
        bool,
        option("Show in /admin/cache-loss the words by which prompts left what was cached, not only where."),
    ] = False
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
        int, option("Workers tried for one request, as long as no byte was answered.", "workers", ge=1)
    ] = 3
    drain_timeout_s: Annotated[
        float, option("For requests under way when stopping; then they are cut and named.", "seconds", ge=0)
    ] = 30.0
    processes: Annotated[
        int,
        option(
            "How many share the port, the load and the admin API; each needs a core and its own memory. "
            "1 serves about 10,000 small requests/s.",
            "processes",
            ge=1,
            le=64,
        ),
    ] = 1
    takeover_socket: Annotated[
        str,
        option(
            "Where a newly started gateway takes the listening sockets over from the running one, which "
            "then finishes what it has begun; the same path for both. Empty: no upgrade in place.",
            "path",
        ),
    ] = ""
    takeover_drain_s: Annotated[
        float,
        option(
            "For requests under way when another gateway has taken over; long, since nobody waits for it.",
            "seconds",
            ge=0,
        ),
    ] = 3600.0
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
    index: Annotated[
        Literal["auto", "memory", "replicated", "redis"],
        option(
            "Where it is known what workers hold. memory: in each gateway for itself. replicated: there too, "
            "and one gateway per worker reads its events and tells the others through Redis, so that one "
            "that starts late knows as much. redis: one gateway per worker tells Redis, and all ask there, "
            "one round trip per request: for what is too much for the memory of each. auto: replicated "
            "where --redis is given, else memory."
        ),
    ] = "auto"
    booking: Annotated[
        Literal["auto", "own", "shared", "atomic"],
        option(
            "Whether gateways know what others have in flight, through Redis. shared: each tells. atomic: "
            "and one decides at a time. auto: shared where --redis is given, else own."
        ),
    ] = "auto"
    redis: Annotated[
        str,
        option(
            "Redis 7 or Valkey 7.2 (or newer) that gateways share: redis://, rediss:// (TLS) or unix://, "
            "with user, password and database as usual; redis+sentinel://HOST:PORT,HOST:PORT/MASTER or "
            "redis+cluster://HOST:PORT,HOST:PORT (rediss+...: TLS), followed when they fail over; or "
            "'embedded', a server that this gateway starts for its own processes.",
            "URL",
        ),
    ] = ""
    redis_password_file: Annotated[
        str,
        option("File with the password for Redis, in place of one in its URL, which `ps` shows.", "path"),
    ] = ""
    redis_ca_file: Annotated[
        str,
        option("Certificates (PEM) by which Redis is verified, in place of the system's.", "path"),
    ] = ""
    redis_cert_file: Annotated[
        str, option("Certificate chain (PEM) shown to a Redis that asks for one.", "path")
    ] = ""
    redis_cert_key_file: Annotated[
        str, option("Its private key, unencrypted PEM, where it is not in the same file.", "path")
    ] = ""
    redis_prefix: Annotated[
        str,
        option(
            "Before each key in Redis. Gateways of one fleet have the same, fleets that share a Redis have "
            "others; models are kept apart by themselves.",
            pattern="^[A-Za-z0-9_.:-]{1,64}$",
        ),
    ] = "kvgate"
    redis_timeout_s: Annotated[
        float,
        option(
            "For a connection to Redis, and for each of its answers; then it counts as lost.", "seconds", gt=0
        ),
    ] = 1.0
    redis_lookup_timeout_s: Annotated[
        float,
        option(
            "With --index redis: how long a request waits for what Redis knows of its prompt. Then it is "
            "routed by what this gateway knows itself. Some hundred times what a lookup takes.",
            "seconds",
            gt=0,
        ),
    ] = 0.02
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
        option("For a worker to tokenize a prompt; then it is routed on load.", "seconds", gt=0),
    ] = 0.5
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], option("What is logged to stderr.")
    ] = "info"


def load(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, path: Path | None = None
) -> Config:
    """Flags over environment over file over defaults. Raises ConfigError."""
    values: dict[str, Any] = {}
    if path is not None:
        values |= _from_file(path)
    values |= from_environment(environ, Config)
    values |= from_flags(flags, Config)
    return convert(values, Config, "configuration")


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}") from exc
    convert(values, Config, str(path), strict=True)  # the file by itself must be right, whatever overrides it
    return values
