"""The configuration: one frozen struct, from flags, environment, file and defaults, in that order.

Each field carries its unit and its reason; `--help` and `docs/reference/options.md` are generated from them.
Unknown fields and wrong types are refused at start with the file and the field. Who the workers are and how
they work together is in `fleet.py`, how they are reached in `upstream.py`, what they serve in `models.py`,
how they come and go in `workers.py`, how one is chosen in `policy.py`, who may ask in `auth.py`, who is
let in in `admission.py`, what several gateways share in `redis.py`, what clients may ask for in `apis.py`,
what is told in `observability.py`, what is loaded on workers in `lora.py`, who may use the admin port in
`admin.py`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from gateway.config.admin import Administration
from gateway.config.options import convert, from_environment, from_flags, option
from gateway.core.errors import ConfigError

MAX_BODY_BYTES = 64 << 20
"""Default limit on a client's body, and the limit on a body that the admin API explains."""


class Config(Administration, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        option(
            "Address of the admin API and /metrics; apart from traffic and on loopback. Elsewhere it needs "
            "keys, see --admin-key.",
            "address",
        ),
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
    ] = MAX_BODY_BYTES
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
