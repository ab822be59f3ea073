"""The default policy before simulated workers, of which some misbehave: it spreads a prompt that most
requests share, and is never far behind the plain policies."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest

from gateway.policies import POLICIES
from gateway.replay.fleet import Setup, VirtualFleet
from gateway.replay.job import ReplayJob
from gateway.replay.profile import H100_8B
from gateway.replay.results import Slo, Summary, summarize
from loadtest.workloads import mixes

NUM, SECONDS = 4, 20.0
SLO = Slo(2.0, 0.05)
CRAWLS = replace(H100_8B, name="crawls", prefill_tokens_per_s=400.0, step_s=0.3)

Prepare = Callable[[VirtualFleet], None]


def hot(seed: int) -> Iterable[ReplayJob]:
    return mixes.hot_prompt(seed, rate=25.0, seconds=SECONDS, prefix=20_000)


def play(name: str, jobs: Iterable[ReplayJob], prepare: Prepare | None = None, **more: object) -> Summary:
    setup = replace(Setup(NUM, H100_8B, block_size=512, policy=POLICIES[name]), **more)  # type: ignore[arg-type]
    fleet = VirtualFleet(setup)
    if prepare is not None:
        prepare(fleet)
    return summarize(name, fleet.run(jobs), NUM, SLO)


def without_events(fleet: VirtualFleet) -> None:
    """Make a gateway see workers that publish none: what was sent there is assumed to be cached."""
    for member in fleet.fleet:
        member.stream = None
        fleet.assumed.add_worker(member.worker.id, keep_s=600.0, max_blocks=1000)


FAULTS: dict[str, tuple[Prepare | None, dict[str, object]]] = {
    "none": (None, {}),
    "a worker crawls": (None, {"profiles": [H100_8B] * (NUM - 1) + [CRAWLS]}),
    "events come late": (None, {"event_delay_s": 3.0}),
    "no events": (without_events, {"event_delay_s": 1e6}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_as_many_requests_meet_the_objective_as_with_the_best_plain_policy(fault: str) -> None:
    """Their share, not goodput: that depends on when the last slow answer ends."""
    prepare, more = FAULTS[fault]
    cells = {
        name: play(name, hot(1), prepare, **more)
        for name in ("expected_ttft", "prefix_overlap", "least_load", "round_robin")
    }
    ours = cells.pop("expected_ttft")
    best = max(cells.values(), key=lambda each: each.good)
    assert ours.good >= 0.97 * best.good, (ours, best)
    assert ours.num_unused == 0


def test_a_prefix_that_is_not_hot_has_one_copy() -> None:
    jobs = partial(mixes.hot_prompt, rate=1.0, seconds=60.0, prefix=20_000, share=1.0)
    summary = play("expected_ttft", jobs(1))
    assert summary.num_unused > 0
    assert summary.hit_rate == pytest.approx(play("prefix_overlap", jobs(1)).hit_rate, abs=0.01)


def test_prefixes_that_each_look_hot_once_make_no_copies() -> None:
    """Eight questions at once on each document."""
    jobs = partial(mixes.fan_out, rate=0.3, seconds=60.0)
    assert play("expected_ttft", jobs(1)).hit_rate >= play("prefix_overlap", jobs(1)).hit_rate - 0.02
