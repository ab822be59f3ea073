"""The options of what several gateways share; all are fields of `Config`."""

from typing import Annotated, Literal

from gateway.config.admission import Flow
from gateway.config.options import option


class Sharing(Flow, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
