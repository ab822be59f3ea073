import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decision import Candidate, Query
from gateway.core.errors import ConfigError
from gateway.core.worker import Role, Served, Transfer, Worker, WorkerId
from gateway.policies.disaggregation import MODES, Disaggregation, Plan, modes_of
from gateway.policies.transfer_speed import TransferSpeed

TOKENS = 8000


def candidate(name: str, overlap: int = 0, *, num_tokens: int = TOKENS, **more: Any) -> Candidate:
    topology, is_bound = more.pop("topology", ""), more.pop("is_bound", False)
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    transfer = Transfer("nixl", is_bound=is_bound)
    worker = Worker(WorkerId(name), f"http://{name}", (Served("m", "m"),), role=role, transfer=transfer)
    worker = replace(worker, topology=topology)
    booked, in_flight = more.pop("booked", 0), more.pop("in_flight", 0)
    return Candidate(worker, overlap, num_tokens - overlap, booked, in_flight, **more)


def policy(mode: str = "auto", latency_s: float = 0.02) -> Disaggregation:
    transfer = TransferSpeed(tokens_per_s=100_000, latency_s=latency_s)
    return Disaggregation(transfer, modes_of([mode]))


def choose(
    decodes: list[Candidate],
    prefills: list[Candidate],
    mode: str = "auto",
    num_tokens: int = TOKENS,
    partners: Any = None,
    of: Disaggregation | None = None,
) -> Plan:
    partners = partners or [range(len(prefills))] * len(decodes)
    direct = min(range(len(decodes)), key=lambda i: decodes[i].uncached_tokens + decodes[i].booked_tokens)
    return (of or policy(mode)).choose(
        Query("m", num_tokens), decodes, direct, prefills, partners, random.Random(1)
    )


def test_cold_and_long_is_split_where_answers_are_under_way() -> None:
    plan = choose([candidate("d1", in_flight=20)], [candidate("p1"), candidate("p2", booked=9000)])
    assert (plan.decode, plan.prefill, plan.reason) == (0, 0, "lower predicted TTFT with a transfer")
    assert plan.direct_s is not None and plan.split_s is not None


def test_short_goes_direct() -> None:
    plan = choose(
        [candidate("d1", num_tokens=100, in_flight=20)], [candidate("p1", num_tokens=100)], num_tokens=100
    )
    assert (plan.prefill, plan.reason) == (None, "lower predicted TTFT without a transfer")


def test_the_next_turn_goes_direct_to_who_decoded_the_one_before() -> None:
    decodes = [candidate("d1", in_flight=5), candidate("d2", 7800, in_flight=5)]
    plan = choose(decodes, [candidate("p1", 4000)])
    assert (plan.decode, plan.prefill, plan.reason) == (1, None, "prefix mostly cached on the decode worker")


def test_saturated_prefill_workers_are_left_alone() -> None:
    plan = choose([candidate("d1", in_flight=2)], [candidate("p1", booked=100_000)])
    assert plan.prefill is None


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_mode_is_a_mode(mode: str) -> None:
    cold = choose([candidate("d1", in_flight=20)], [candidate("p1")], mode)
    held = choose([candidate("d1", 7990)], [candidate("p1")], mode)
    assert (cold.prefill is not None, held.prefill is not None) == {
        "auto": (True, False),
        "always": (True, True),
        "never": (False, False),
    }[mode]


def test_only_those_that_fit_are_partners() -> None:
    decodes = [candidate("d1", in_flight=20), candidate("d2", in_flight=30)]
    plan = choose(decodes, [candidate("p1", booked=5000), candidate("p2")], partners=[[], [0]])
    assert (plan.decode, plan.prefill) == (1, 0)
    nobody = choose(decodes, [candidate("p1")], partners=[[], []])
    assert (nobody.prefill, nobody.reason) == (None, "no compatible prefill worker")


def test_near_ones_go_first_until_they_are_busy() -> None:
    decodes = [candidate("d1", topology="r1/h1", in_flight=20)]
    near, far = candidate("p1", topology="r1/h2"), candidate("p2", topology="r2/h1")
    assert choose(decodes, [far, near]).prefill == 1
    assert choose(decodes, [far, candidate("p1", topology="r1/h2", booked=50_000)]).prefill == 0


def test_the_decode_worker_that_holds_most_and_is_free_is_chosen() -> None:
    decodes = [
        candidate("d1", in_flight=10),
        candidate("d2", 4000, in_flight=10),
        candidate("d3", kv_usage=0.99),
    ]
    assert choose(decodes, [candidate("p1")], "always").decode == 1


def test_a_pair_that_made_different_prompts_is_none_any_more() -> None:
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


def test_one_that_answers_nothing_alone_is_always_split() -> None:
    decodes = [candidate("d1", 7990, is_bound=True)]
    for mode in MODES:
        plan = choose(decodes, [candidate("p1", booked=90_000)], mode)
        assert (plan.prefill, plan.direct_s) == (0, None)


def test_one_that_has_answers_of_its_own_is_no_better_place_for_a_prompt() -> None:
    """Where all do both, to compute it elsewhere only moves the harm, and costs a transfer."""
    decodes = [candidate(f"d{i}", in_flight=40) for i in range(3)]
    assert choose(decodes, decodes).prefill is None
    idle = candidate("d3")
    assert choose([*decodes], [*decodes, idle]).prefill == 3


def test_a_worker_that_does_both_is_no_pair_with_itself() -> None:
    both = candidate("d1", in_flight=20)
    plan = choose([both], [both], "always")
    assert (plan.decode, plan.prefill) == (0, None)


@given(
    st.lists(
        st.tuples(st.integers(0, TOKENS), st.integers(0, 50_000), st.integers(0, 60)), min_size=1, max_size=5
    ),
    st.lists(st.tuples(st.integers(0, TOKENS), st.integers(0, 50_000)), max_size=5),
)
def test_auto_is_never_later_than_the_sooner_of_both(
    decodes: list[tuple[int, int, int]], prefills: list[tuple[int, int]]
) -> None:
    some = [candidate(f"d{i}", o, booked=b, in_flight=n) for i, (o, b, n) in enumerate(decodes)]
    others = [candidate(f"p{i}", o, booked=b) for i, (o, b) in enumerate(prefills)]
    plan = choose(some, others)
    if plan.split_s is None:
        assert plan.prefill is None and not others
    elif plan.prefill is None:
        assert plan.direct_s is not None and plan.direct_s <= plan.split_s + 0.02  # what the others pay
    else:
        always = choose(some, others, "always")
        assert plan.split_s == always.split_s


def test_modes_are_by_model_or_for_all() -> None:
    assert modes_of(["always", "org/m=never"]) == {"": "always", "org/m": "never"}
    assert policy("m=never").modes == {"": "auto", "m": "never"}
    with pytest.raises(ConfigError, match="disaggregation: 'some' is none of auto, always, never"):
        modes_of(["some"])
