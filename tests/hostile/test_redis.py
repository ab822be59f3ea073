"""A client of Redis writes arbitrary data where gateways keep shared state."""

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import RedisError

from gateway.app import bundled_tokenizer
from gateway.bookings.message import BookingsMessage, Promise, WorkerBookings, encode
from gateway.redis.embedded import EmbeddedServer
from tests.support.blackbox.siege import Siege, count, siege
from tests.support.patience import until

NUM_ROUNDS = count(2, 30)
NUM_MESSAGES = count(5000, 500_000)
HUGE = b"x" * count(8 << 20, 64 << 20)
CHANNEL = "kvgate:0:bookings"
GARBAGE = (b"", b"\xff" * 30, b"garbage", b"9" * 5000, b"1e308", b"-1", b"nan", b"\x00" * 17)


def of_another_type(client: Redis, key: bytes, rng: random.Random) -> None:
    client.delete(key)
    rng.choice(
        [
            lambda: client.set(key, rng.choice(GARBAGE)),
            lambda: client.hset(key, rng.choice(GARBAGE), rng.choice(GARBAGE)),
            lambda: client.rpush(key, *GARBAGE),
            lambda: client.sadd(key, *GARBAGE),
            lambda: client.xadd(key, {b"t": rng.choice(GARBAGE), b"d": rng.choice(GARBAGE)}),
            lambda: client.zadd(key, {b"a": 1.0}),
        ]
    )()


def of_its_type(client: Redis, key: bytes, rng: random.Random) -> None:
    """Garbage of the right type where the gateway looks for its own data."""
    match client.type(key):
        case b"string":
            client.set(key, rng.choice(GARBAGE), px=2000)
        case b"stream":
            for field in GARBAGE:
                with contextlib.suppress(RedisError):
                    client.xadd(key, {b"t": field, b"d": rng.choice(GARBAGE)}, id=f"{rng.randrange(2**63)}-1")
        case b"list":
            client.rpush(key, *GARBAGE)
        case b"hash":
            client.hset(key, mapping={field: rng.choice(GARBAGE) for field in GARBAGE})
        case b"set":
            client.sadd(key, *GARBAGE)


def huge(client: Redis, key: bytes, rng: random.Random) -> None:
    match client.type(key):
        case b"string":
            client.set(key, HUGE, px=2000)
        case b"stream":
            with contextlib.suppress(RedisError):
                client.xadd(key, {b"t": b"1", b"d": HUGE})
        case b"list":
            client.rpush(key, HUGE)
        case b"hash":
            client.hset(key, b"x", HUGE)


def gone(client: Redis, key: bytes, rng: random.Random) -> None:
    client.delete(key)


ATTACKS: list[Callable[[Redis, bytes, random.Random], None]] = [of_its_type, of_another_type, huge, gone]


def write_all_over(client: Redis, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(NUM_ROUNDS):
        for key in list(client.scan_iter(match="kvgate:*")):
            if not key.endswith(b":schema"):
                with contextlib.suppress(RedisError):
                    ATTACKS[(number + rng.randrange(2)) % len(ATTACKS)](client, key, rng)
        client.script_flush()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def talk_nonsense(client: Redis, worker: str, seed: int) -> None:
    """Send bookings of thousands of gateways, at known and unknown workers."""
    rng, pipe = random.Random(seed), client.pipeline(transaction=False)
    for number in range(NUM_MESSAGES):
        booked = [WorkerBookings(f"w{rng.randrange(10**9)}:1", 2**40, 2**40) for _ in range(5)]
        booked.append(WorkerBookings(worker, rng.randrange(2**40), 2**40))
        promises = [Promise(worker, [rng.randrange(2**64)], 86_400_000)]  # type: ignore[list-item]
        reported = BookingsMessage(
            rng.randrange(2**62), rng.randrange(2**62), 2**62, booked, promises, lock_number=2**62, asks=True
        )
        pipe.publish(CHANNEL, rng.choice(GARBAGE) if number % 5 == 0 else encode(reported))
        if number % 500 == 499:
            pipe.execute()
    pipe.execute()


@contextlib.contextmanager
def redis() -> "contextlib._GeneratorContextManager[tuple[str, Redis]]":
    server = EmbeddedServer()
    server.start()
    try:
        with Redis(unix_socket_path=str(server.socket)) as client:
            yield server.url, client
    finally:
        server.stop()


async def others_are_forgotten(under: Siege) -> None:
    async def are_gone() -> bool:
        return await under.gateway.total("kvgate_remote_requests_in_flight") == 0

    await until(are_gone, "bookings without a gateway are forgotten")


@pytest.mark.parametrize("index", ["replicated", "redis"])
async def test_requests_are_answered_whatever_is_in_redis(index: str) -> None:
    with redis() as (url, client):
        flags = ("--events", "auto", "--redis", url, "--index", index, "--booking", "atomic")
        tokenizer = ("--tokenizer", str(bundled_tokenizer()))
        async with siege(*flags, *tokenizer) as under:
            worker = under.engines[0].removeprefix("http://")
            await until(lambda: client.dbsize() > 2, "gateways share something")
            await under.keep_good(asyncio.to_thread(write_all_over, client, 1))
            await under.keep_good(asyncio.to_thread(talk_nonsense, client, worker, 2))
            await others_are_forgotten(under)
            client.flushall()
            for number in range(20):
                await under.good(f"after the attack {number}")
