"""Cost of choosing a worker: candidates made of overlap and bookings, and the least of their costs."""

import random
from array import array

from gateway import request
from gateway.core.blocks import root_hash
from gateway.core.decision import Prompt
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.routing.router import Router
from loadtest.report import Figure, best_of

DECIDE_GOALS_US = {8: 15.0, 128: 150.0, 1000: 1000.0}
"""Goals by the number of candidates."""
BLOCK, NUM_BLOCKS = 16, 256
ROUNDS, DECISIONS = 5, 40
ASKED = request("/v1/completions", {"model": "m", "prompt": [1]})


def router_of(num_workers: int) -> tuple[Router, Prompt]:
    """Router with workers that each hold another part of the prompt, a tenth of them none."""
    fleet, index, assumed = Fleet(), MemoryIndex(), AssumedIndex()
    tokens = array("I", range(BLOCK * NUM_BLOCKS))
    for number in range(num_workers):
        name = WorkerId(f"w{number}")
        fleet.add(
            Worker(name, f"http://{name}", (ServedModel("m", "m"),), block_size=BLOCK, num_blocks=10_000)
        )
        index.add_worker(name, root_hash("m"), BLOCK)
        assumed.add_worker(name, keep_s=1.0, max_blocks=10_000)
        if held := number % 10 * 20:
            index.apply(name, BlocksStored(list(range(1, held + 1)), None, tokens[: BLOCK * held], BLOCK))
    router = Router(
        fleet=fleet,
        index=index,
        assumed=assumed,
        policy=ExpectedTtft(),
        tokenize=lambda _: Prompt(),
        rng=random.Random(1),
    )
    return router, Prompt((tokens,), "ids")


def decide_us(num_workers: int, goal: float) -> Figure:
    """Cost of the stage behind the index, as decisions time it: the least disturbed of some decisions."""
    router, prompt = router_of(num_workers)
    rounds = []
    for _ in range(ROUNDS):
        decisions = [router.decide(ASKED, prompt=prompt) for _ in range(DECISIONS)]
        rounds.append(min(decision.timings_s.policy for decision in decisions) * 1e6)
        for decision in decisions:
            router.finish(decision)
    return best_of(f"policy.decide_{num_workers}_us", "us", goal, rounds)
