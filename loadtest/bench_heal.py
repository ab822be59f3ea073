"""Benchmark `make bench-heal`: a gateway starts in front of a warm engine with a replay buffer of two
batches.

How many requests does each hot prefix take until it is known: until the prediction for a request is the
number that the engine reports, and the index alone yields it? For engines that announce a request's cached
blocks on demand, and for older ones, where responses and the runs behind them have to do. The engine is
simulated; the real one is tested in `tests/vllm/test_healing.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvloop

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from loadtest.extent import extent
from loadtest.report import Figure, publish
from loadtest.workloads.conversations import Conversations

NUM_PREFIXES = extent(2, 12)
NUM_TURNS = 4
MAX_REQUESTS = 8
GOAL = 2
PAUSE_S = 0.8
"""Seconds between two requests: a user reads the response; runs are looked for when it has settled."""
ENGINES: dict[str, dict[str, Any]] = {"announcing": {}, "older": {"event_wire": "array"}}


@dataclass(frozen=True, slots=True)
class PrefixRecovery:
    """Recovery of one hot prefix: requests until one was predicted rightly, and its blocks in the index
    then."""

    num_requests: int
    num_known: int
    num_cached: int


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = [
            Figure(f"stream.heal_requests{suffix}", max(rounds), "requests", GOAL, rounds)
            for suffix, rounds in (
                ("", requests_of(runner.run(heal(**ENGINES["announcing"])))),
                (".older", requests_of(runner.run(heal(**ENGINES["older"])))),
            )
        ]
    publish("bench_heal", figures)


def requests_of(healed: list[PrefixRecovery]) -> list[float]:
    return [float(each.num_requests) for each in healed]


async def heal(**flags: Any) -> list[PrefixRecovery]:
    """Warm an engine up, start a gateway in front, and continue each conversation."""
    flags = {"replay_buffer": 2, "kv_blocks": 4000, "prefill_tokens_per_s": 1e6} | flags
    sim = await Sim(SimConfig(port=0, decode_tokens_per_s=2000.0, **flags)).start()
    try:
        async with aiohttp.ClientSession() as session:
            conversations = [list(bodies(seed)) for seed in range(NUM_PREFIXES)]
            for turns in conversations:
                for body in turns[:NUM_TURNS]:
                    await ask(session, sim.url, body)
            async with blind_gateway(sim) as gateway:
                return [await heal_one(session, gateway, turns[NUM_TURNS:]) for turns in conversations]
    finally:
        await sim.stop()


def bodies(seed: int) -> Iterator[dict[str, Any]]:
    """Bodies of a conversation that took place, and then other questions at the same point of it."""
    turns = list(Conversations("m", seed, turn_chars=400).turns(NUM_TURNS + 1))
    yield from turns[:NUM_TURNS]
    pieces = Conversations("m", 1000 + seed)
    for _ in range(MAX_REQUESTS):
        messages = [*turns[-1]["messages"][:-1], {"role": "user", "content": pieces.piece(200)}]
        yield turns[-1] | {"messages": messages}


@asynccontextmanager
async def blind_gateway(sim: Sim) -> AsyncIterator[Gateway]:
    config = config_of(
        worker=[sim.url],
        tokenizer=[str(bundled_tokenizer())],
        port=0,
        admin_port=0,
        expose_headers=True,
    )
    gateway = Gateway(config)
    await gateway.start()
    try:
        async with asyncio.timeout(20):
            while {member.stream for member in gateway.fleet} != {StreamState.BLIND}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield gateway
    finally:
        await gateway.stop()


async def heal_one(
    session: aiohttp.ClientSession, gateway: Gateway, questions: list[dict[str, Any]]
) -> PrefixRecovery:
    worker = WorkerId(next(iter(gateway.fleet)).worker.id)
    for num, body in enumerate(questions, 1):
        num_known = known(gateway, worker, body)
        answer = await ask(session, f"http://127.0.0.1:{gateway.port}", body)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached and answer["predicted"] == cached:
            return PrefixRecovery(num, num_known, cached // 16)
        await asyncio.sleep(PAUSE_S)
    return PrefixRecovery(MAX_REQUESTS + 1, 0, 0)


def known(gateway: Gateway, worker: WorkerId, body: dict[str, Any]) -> int:
    """Blocks of a chat that the index alone credits its worker with."""
    import gateway as library

    request = library.request("/v1/chat/completions", body)
    prompt = gateway.parts.prompts.source.tokenize(request)
    ((_, hashes),) = gateway.router.asked_of(request, prompt)
    return gateway.index.overlap(hashes).get(worker, 0)


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        reply: dict[str, Any] = await answer.json()
        assert answer.status == 200, reply
        return reply | {"predicted": int(answer.headers.get("x-kvgate-overlap-tokens", 0))}


if __name__ == "__main__":
    main()
