import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision import Candidate, Query
from gateway.core.errors import ConfigError
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.policies.disaggregation import MODES, DisaggregationPolicy, PairChoice, modes_of

TOKENS = 8000


def candidate(name: str, overlap: int = 0, *, num_tokens: int = TOKENS, **more: Any) -> Candidate:
    topology, is_bound = more.pop("topology", ""), more.pop("is_bound", False)
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    transfer = Transfer("nixl", is_bound=is_bound)
    worker = Worker(WorkerId(name), f"http://{name}", (ServedModel("m", "m"),), role=role, transfer=transfer)
    worker = replace(worker, topology=topology)
    booked, in_flight = more.pop("booked", 0), more.pop("in_flight", 0)
    return Candidate(worker, overlap, num_tokens - overlap, booked, in_flight, **more)


def policy(mode: str = "auto", latency_s: float = 0.02) -> DisaggregationPolicy:
    transfer = TransferSpeed(tokens_per_s=100_000, latency_s=latency_s)
    return DisaggregationPolicy(transfer, modes_of([mode]))


def choose(
    decodes: list[Candidate],
    prefills: list[Candidate],
    mode: str = "auto",
    num_tokens: int = TOKENS,
    partners: Any = None,
    of: DisaggregationPolicy | None = None,
) -> PairChoice:
    partners = partners or [range(len(prefills))] * len(decodes)
    direct = min(range(len(decodes)), key=lambda i: decodes[i].uncached_tokens + decodes[i].booked_tokens)
    return (of or policy(mode)).choose(
        Query("m", num_tokens), decodes, direct, prefills, partners, random.Random(1)
    )


def test_cold_and_long_prompts_are_disaggregated_while_answers_run() -> None:
    plan = choose([candidate("d1", in_flight=20)], [candidate("p1"), candidate("p2", booked=9000)])
    assert (plan.decode, plan.prefill, plan.reason) == (0, 0, "lower predicted TTFT with a transfer")
    assert plan.direct_s is not None and plan.split_s is not None


def test_short_prompts_go_direct() -> None:
    plan = choose(
        [candidate("d1", num_tokens=100, in_flight=4)], [candidate("p1", num_tokens=100)], num_tokens=100
    )
    assert (plan.prefill, plan.reason) == (None, "lower predicted TTFT without a transfer")


def test_the_next_turn_goes_direct_to_its_decode_worker() -> None:
    decodes = [candidate("d1", in_flight=5), candidate("d2", 7800, in_flight=5)]
    plan = choose(decodes, [candidate("p1", 4000)])
    assert (plan.decode, plan.prefill, plan.reason) == (1, None, "prefix mostly cached on the decode worker")


def test_saturated_prefill_workers_are_not_used() -> None:
    plan = choose([candidate("d1", in_flight=2)], [candidate("p1", booked=100_000)])
    assert plan.prefill is None


@pytest.mark.parametrize("mode", sorted(MODES))
def test_each_mode_decides_as_documented(mode: str) -> None:
    cold = choose([candidate("d1", in_flight=20)], [candidate("p1")], mode)
    held = choose([candidate("d1", 7990)], [candidate("p1")], mode)
    assert (cold.prefill is not None, held.prefill is not None) == {
        "auto": (True, False),
        "always": (True, True),
        "never": (False, False),
    }[mode]


def test_compatible_workers_are_partners() -> None:
    decodes = [candidate("d1", in_flight=20), candidate("d2", in_flight=30)]
    plan = choose(decodes, [candidate("p1", booked=5000), candidate("p2")], partners=[[], [0]])
    assert (plan.decode, plan.prefill) == (1, 0)
    alone = choose(decodes, [candidate("p1")], partners=[[], []])
    assert (alone.prefill, alone.reason) == (None, "no compatible prefill worker")


def test_near_prefill_workers_are_preferred_until_busy() -> None:
    decodes = [candidate("d1", topology="r1/h1", in_flight=20)]
    near, far = candidate("p1", topology="r1/h2"), candidate("p2", topology="r2/h1")
    assert choose(decodes, [far, near]).prefill == 1
    assert choose(decodes, [far, candidate("p1", topology="r1/h2", booked=50_000)]).prefill == 0


def test_the_decode_worker_with_the_most_overlap_and_room_is_chosen() -> None:
    decodes = [
        candidate("d1", in_flight=10),
        candidate("d2", 4000, in_flight=10),
        candidate("d3", kv_usage=0.99),
    ]
    assert choose(decodes, [candidate("p1")], "always").decode == 1


def test_a_banned_pair_is_not_used() -> None:
    of, decodes = policy(), [candidate("d1", in_flight=20)]
    prefills = [candidate("p1"), candidate("p2", booked=500)]
    assert choose(decodes, prefills, of=of).prefill == 0
    assert of.ban(WorkerId("p1"), WorkerId("d1"), "why")
    assert not of.ban(WorkerId("p1"), WorkerId("d1"), "why")
    assert of.banned_with(WorkerId("p1")) == {"d1": "why"}
    assert of.banned_with(WorkerId("d1")) == {"p1": "why"}
    assert of.banned_with(WorkerId("p2")) == {}
    assert choose(decodes, prefills, of=of).prefill == 1
    of.allow(WorkerId("p1"))
    assert choose(decodes, prefills, of=of).prefill == 0
    of.ban(WorkerId("p1"), WorkerId("d1"), "why")
    assert of.acquit(WorkerId("p1"), WorkerId("d1"))
    assert not of.acquit(WorkerId("p1"), WorkerId("d1"))
    assert choose(decodes, prefills, of=of).prefill == 0


def test_a_decode_worker_that_cannot_answer_alone_is_always_given_a_prefill_worker() -> None:
    decodes = [candidate("d1", 7990, is_bound=True)]
    for mode in MODES:
        plan = choose(decodes, [candidate("p1", booked=90_000)], mode)
        assert (plan.prefill, plan.direct_s) == (0, None)


def test_a_prefill_worker_with_running_answers_is_no_better() -> None:
    """Where all workers have both roles, disaggregation only moves the delay, and costs a transfer."""
    decodes = [candidate(f"d{i}", in_flight=40) for i in range(3)]
    assert choose(decodes, decodes).prefill is None
    idle = candidate("d3")
    assert choose([*decodes], [*decodes, idle]).prefill == 3


def test_a_worker_of_both_roles_is_no_pair_with_itself() -> None:
    both = candidate("d1", in_flight=20)
    plan = choose([both], [both], "always")
    assert (plan.decode, plan.prefill) == (0, None)


@given(
    st.lists(
        st.tuples(st.integers(0, TOKENS), st.integers(0, 50_000), st.integers(0, 60)), min_size=1, max_size=5
    ),
    st.lists(st.tuples(st.integers(0, TOKENS), st.integers(0, 50_000)), max_size=5),
)
def test_auto_is_never_later_than_the_faster_plan(
    decodes: list[tuple[int, int, int]], prefills: list[tuple[int, int]]
) -> None:
    some = [candidate(f"d{i}", o, booked=b, in_flight=n) for i, (o, b, n) in enumerate(decodes)]
    prefill_candidates = [candidate(f"p{i}", o, booked=b) for i, (o, b) in enumerate(prefills)]
    plan = choose(some, prefill_candidates)
    if plan.split_s is None:
        assert plan.prefill is None and not prefill_candidates
    elif plan.prefill is None:
        assert (
            plan.direct_s is not None and plan.direct_s <= plan.split_s + 0.02
        )  # the delay of other requests
    else:
        always = choose(some, prefill_candidates, "always")
        assert plan.split_s == always.split_s


def test_modes_are_set_by_model_or_for_all() -> None:
    assert modes_of(["always", "org/m=never"]) == {"": "always", "org/m": "never"}
    assert policy("m=never").modes == {"": "auto", "m": "never"}
    with pytest.raises(ConfigError, match="disaggregation: 'some' is not one of auto, always, never"):
        modes_of(["some"])
