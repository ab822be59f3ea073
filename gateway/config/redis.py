"""Tables `[redis]` and `[index]`: state that gateways share, and the index of cached blocks."""

from typing import Annotated, Literal

from gateway.config.options import Section, option
from gateway.core.block_limits import MAX_BLOCKS


class IndexSection(Section, frozen=True):
    backend: Annotated[
        Literal["auto", "memory", "replicated", "redis"],
        option(
            "Index of the blocks that workers hold. memory: each gateway has its own. replicated: also in "
            "memory, while one gateway per worker reads its events and publishes them through Redis, so that "
            "a late starter is exact at once. redis: one gateway per worker writes to Redis, and all look up "
            "there, one round trip per request, for indexes too large for each gateway's memory. auto: "
            "replicated with --redis, else memory.",
            flag="index",
        ),
    ] = "auto"
    max_worker_blocks: Annotated[
        int,
        option(
            "Limit on indexed blocks of one worker, for its GPU and for its offload tiers each, whatever it "
            "declares; all workers together have eight times as many. Beyond it the gateway pauses the "
            "worker's events, and its stream is BLIND.",
            "blocks",
            ge=1024,
            is_rare=True,
        ),
    ] = MAX_BLOCKS
    offload_blocks: Annotated[
        int,
        option(
            "Limit on indexed blocks of one worker in all its offload tiers (CPU, disk, remote), which no "
            "engine declares; beyond it further blocks there are not followed. 0: 16 times what it declares "
            "for its GPU.",
            "blocks",
            ge=0,
            is_rare=True,
        ),
    ] = 0


class RedisSection(Section, frozen=True):
    url: Annotated[
        str,
        option(
            "Redis 7 or Valkey 7.2 (or newer) that gateways share: redis://, rediss:// (TLS) or unix://, "
            "with user, password and database as usual; redis+sentinel://HOST:PORT,HOST:PORT/MASTER or "
            "redis+cluster://HOST:PORT,HOST:PORT (rediss+...: TLS), with fail-over; or 'embedded', a "
            "server that this gateway starts for its own processes.",
            "URL",
            flag="redis",
            is_secret=True,
            is_common=True,
        ),
    ] = ""
    booking: Annotated[
        Literal["auto", "own", "shared", "atomic"],
        option(
            "Sharing of in-flight load between gateways through Redis. shared: each publishes its bookings. "
            "atomic: additionally one gateway decides at a time. auto: shared with --redis, else own.",
            flag="booking",
        ),
    ] = "auto"
    password_file: Annotated[
        str,
        option("File with the password for Redis, in place of one in its URL, which `ps` shows.", "path"),
    ] = ""
    ca_file: Annotated[
        str,
        option("CA certificates (PEM) that verify Redis, in place of the system's.", "path"),
    ] = ""
    cert_file: Annotated[
        str, option("Client certificate chain (PEM) for a Redis that requires one.", "path", is_rare=True)
    ] = ""
    cert_key_file: Annotated[
        str,
        option(
            "Private key of that certificate, unencrypted PEM; default: in the same file.",
            "path",
            is_rare=True,
        ),
    ] = ""
    prefix: Annotated[
        str,
        option(
            "Prefix of each key in Redis. Gateways of one fleet share it, and fleets that share a Redis "
            "have different ones; models are kept apart without it.",
            pattern="^[A-Za-z0-9_.:-]{1,64}$",
        ),
    ] = "kvgate"
    timeout_s: Annotated[
        float,
        option(
            "Timeout of a connection to Redis and of each answer; beyond it Redis counts as lost.",
            "seconds",
            gt=0,
        ),
    ] = 1.0
    lookup_timeout_s: Annotated[
        float,
        option(
            "Timeout of a request's lookup with --index redis; beyond it the gateway routes by its own "
            "knowledge. Default: some hundred times the duration of a lookup.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 0.02
