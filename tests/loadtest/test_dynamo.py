import random
from array import array

from gateway import request
from gateway.core.blocks import hash_blocks, root_hash
from gateway.core.decision import Decided, Decision, Prompt, Query
from gateway.core.usage import Usage
from loadtest.dynamo import DynamoCost
from tests.policies.contract import PolicyContract, candidate

ASKED = request("/v1/completions", {"model": "m", "prompt": [1]})
QUERY = Query("m", 160)


class TestDynamoCost(PolicyContract):
    def make(self) -> DynamoCost:
        return DynamoCost()


def decided(policy: DynamoCost, name: str, first: int, number: int = 0) -> tuple[Decision, list[int]]:
    tokens = array("I", range(first, first + 160))
    blocks = hash_blocks(tokens, 16, root_hash("m"))
    chosen = candidate(name)
    decision = Decision(f"{name} {first} {number}", "m", "dynamo", chosen.worker, 160, 0, "", (chosen,))
    policy.decided(Decided(decision, Prompt((tokens,), "ids"), [blocks], ASKED))
    return decision, blocks


def test_uncached_blocks_and_blocks_in_use_count() -> None:
    policy, rng = DynamoCost(), random.Random(0)
    held, booked = candidate("a", prompt=160, overlap=80), candidate("b", prompt=160, booked=320)
    assert policy.choose(QUERY, [held, booked], rng).terms == (5 + 10, 20 + 10 + 10)


def test_blocks_in_use_are_counted_once_until_the_last_answer_ends() -> None:
    policy, rng = DynamoCost(), random.Random(0)
    busy = candidate("a", prompt=160, in_flight=1)
    first, second = decided(policy, "a", 0), decided(policy, "a", 0, 1)
    other = decided(policy, "a", 1000)

    def in_use() -> float:
        return policy.choose(QUERY, [busy], rng).terms[0] - 20

    assert in_use() == 20
    policy.answered(*first, Usage(160))
    assert in_use() == 20
    policy.answered(*second, Usage(160))
    assert in_use() == 10
    policy.answered(*other, Usage(160))
    assert in_use() == 0


def test_blocks_lost_in_a_restart_are_not_in_use() -> None:
    policy, rng = DynamoCost(), random.Random(0)
    lost = decided(policy, "a", 0)
    assert policy.choose(QUERY, [candidate("a", prompt=160)], rng).terms == (20,)
    policy.answered(*lost, Usage(160))
    assert policy.choose(QUERY, [candidate("a", prompt=160, in_flight=1)], rng).terms == (20,)
