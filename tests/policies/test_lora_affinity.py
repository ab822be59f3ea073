import random

from gateway.core.decision import Query
from gateway.policies.base import Policy
from gateway.policies.framework.registry import PolicyRegistry
from gateway.policies.lora_affinity import LoraScorer
from tests.policies.contract import PolicyContract, candidate


class TestLoraAffinity(PolicyContract):
    def make(self) -> Policy:
        return PolicyRegistry().policy("lora_affinity")


def test_an_adapter_keeps_its_worker_until_it_is_busy() -> None:
    policy, fleet = PolicyRegistry().policy("lora_affinity"), [candidate(name) for name in "abcdefgh"]
    query = Query("lora", 1000, adapter="lora")
    home = {policy.choose(query, fleet, random.Random(seed)).index for seed in range(20)}
    assert len(home) == 1
    busy = [candidate(c.id, in_flight=9, booked=9000) if i in home else c for i, c in enumerate(fleet)]
    assert {policy.choose(query, busy, random.Random(seed)).index for seed in range(20)} & home == set()


def test_a_request_without_an_adapter_follows_its_prefix() -> None:
    fleet = [candidate("a"), candidate("b", overlap=900), candidate("c")]
    choice = PolicyRegistry().policy("lora_affinity").choose(Query("m", 1000), fleet, random.Random(1))
    assert (choice.index, choice.reason) == (1, "lora_affinity 0.00, prefix_overlap 0.90, least_load 1.00")
    assert LoraScorer().score(Query("m", 1000), fleet) == [0.0] * 3
