"""Rows of `make bench-policies`: the traces, faulty fleets, and the traffic that
users have."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.replay.fleet import Restart
from gateway.replay.job import ReplayJob
from gateway.replay.profile import H100_8B, H100_70B, Profile
from gateway.replay.results import Slo
from gateway.replay.traces import agent, mooncake
from loadtest.extent import extent
from loadtest.workloads import mixes
from loadtest.workloads.groups import groups
from loadtest.workloads.short_answers import BLOCK, rate_of, short_answers
from loadtest.workloads.traces import AGENT, CONVERSATION, bundled_encode

NUM_WORKERS, KV_TOKENS = 8, 1_000_000
LIMIT = int(os.environ.get("LIMIT", extent("40", "1200", "12031")))
SATURATED_S = extent(1.0, 30.0, 60.0)
"""Seconds of the saturated rows; speeds and seats are learnt within the first ten."""
SEATS, SATURATED_WORKERS, SHARES = 64, 4, (1.0, 1.15, 1.3)
SATURATED = "saturated"
MIX_P99 = 1.05

FAST = replace(H100_8B, kv_tokens=KV_TOKENS)
LARGE = replace(H100_70B, kv_tokens=KV_TOKENS)
HALF = replace(
    FAST,
    name="half",
    prefill_tokens_per_s=FAST.prefill_tokens_per_s / 2,
    step_s=FAST.step_s * 2,
    seq_s=FAST.seq_s * 2,
)


@dataclass(frozen=True, slots=True)
class PolicyScenario:
    """Workload and fleet; `jobs` by seed. `p99_goal` of the default policy over the best of the others."""

    name: str
    jobs: Callable[[int], Iterable[ReplayJob]]
    profile: Profile = FAST
    profiles: Sequence[Profile] = ()
    restarts: Sequence[Restart] = ()
    event_delay_s: float = 0.005
    block_size: int = 512
    slo: Slo = Slo(2.0, 0.05)
    p99_goal: float = MIX_P99
    num_workers: int = NUM_WORKERS


def saturated(profile: Profile, share: float, seed: int) -> Iterable[ReplayJob]:
    return short_answers(SATURATED_WORKERS * rate_of(profile, share), SATURATED_S, seed)


def saturated_rows() -> list[PolicyScenario]:
    rows: list[PolicyScenario] = []
    for size, base, slo in (("8b", FAST, Slo(2.0, 0.05)), ("70b", LARGE, Slo(5.0, 0.1))):
        profile = replace(base, max_num_seqs=SEATS)
        for share in SHARES:
            name, jobs = (
                f"{SATURATED}_{share:.0%}_{size}".replace("%", ""),
                partial(saturated, profile, share),
            )
            row = PolicyScenario(name, jobs, profile, block_size=BLOCK, slo=slo, p99_goal=1.0)
            rows.append(replace(row, num_workers=SATURATED_WORKERS))
    return rows


def conversation(speed: float, seed: int) -> Iterable[ReplayJob]:
    return mooncake(CONVERSATION, speed=speed, limit=LIMIT, seed=seed)


def agents(copies: int, speed: float, seed: int) -> Iterable[ReplayJob]:
    num = max(copies * LIMIT // 12031, 1)
    return agent(AGENT, bundled_encode(), copies=num, speed=speed, seed=seed)


def ladder(seed: int) -> Iterable[ReplayJob]:
    return groups((3, 10, 20, 30, 40, 50, 60), 40.0 * LIMIT / 12031, seed)


def rows() -> list[PolicyScenario]:
    half, large = Slo(2.0, 0.1), partial(PolicyScenario, profile=LARGE, slo=Slo(5.0, 0.1))
    twice = partial(conversation, 2.0)
    minutes = [Restart(60.0 * (1 + number), number % NUM_WORKERS, 20.0) for number in range(30)]
    return [
        PolicyScenario("conversation_1x", partial(conversation, 1.0)),
        PolicyScenario("conversation_2x", twice),
        PolicyScenario("conversation_3x", partial(conversation, 3.0)),
        large("conversation_1x_70b", partial(conversation, 1.0)),
        large("conversation_2x_70b", twice),
        large("conversation_3x_70b", partial(conversation, 3.0)),
        PolicyScenario("agent", partial(agents, 40, 5.0), block_size=64),
        PolicyScenario("groups_ladder", ladder, block_size=400),
        PolicyScenario("mixed_fleet_2x", twice, profiles=(*[FAST] * 4, *[HALF] * 4), slo=half),
        PolicyScenario("late_events_2x", twice, event_delay_s=2.0),
        PolicyScenario("restarts_2x", twice, restarts=minutes),
        *saturated_rows(),
    ]


SLO_8B, SLO_70B = Slo(2.0, 0.05), Slo(5.0, 0.1)
L4 = replace(
    H100_8B,
    name="l4",
    prefill_tokens_per_s=5000,
    step_s=0.055,
    seq_s=0.0008,
    kv_tokens=60_000,
    max_num_seqs=128,
)
"""Llama 3.1 8B on one L4: 300 GB/s of memory, 120 TFLOP/s, 24 GB."""
MIX_S = extent(2.0, 60.0)
CODING: Mapping[str, Any] = {
    "prefixes": 1,
    "prefix": 25_000,
    "first": (500, 3000),
    "first_mean": 1500,
    "added": (300, 3000),
    "turns": 20.0,
    "think_s": 3.0,
}
"""Chats as coding agents have them: one system prompt and its tools, many turns, results of tools added."""


def mixed_rows() -> list[PolicyScenario]:
    """Traffic that users have, on eight workers with the caches that such engines have."""

    def row(name: str, jobs: Callable[[int], Iterable[ReplayJob]], **more: object) -> PolicyScenario:
        made = PolicyScenario(name, jobs, profile=H100_8B, slo=SLO_8B)
        return replace(made, **more)  # type: ignore[arg-type]

    large = {"profile": H100_70B, "slo": SLO_70B}
    hot = partial(mixes.hot_prompt, seconds=MIX_S)
    chats = partial(mixes.chats, seconds=3 * MIX_S)
    coding = partial(chats, **CODING)
    unique = partial(mixes.unique, seconds=MIX_S)
    cold = [Restart(0.0, number, MIX_S / 3) for number in (6, 7)]
    return [
        row("hot_prompt", partial(hot, rate=60)),
        row("hot_prompt_70b", partial(hot, rate=20), **large),
        row("hot_prompt_32_workers", partial(hot, rate=240, seconds=MIX_S / 2), num_workers=32),
        row("hot_prompt_100k", partial(hot, rate=60, prefix=100_000)),
        row("hot_prompt_joins_cold", partial(hot, rate=60), restarts=cold),
        row("hot_document_each_10_s", partial(hot, rate=40, every_s=10.0)),
        row("coding_agents", partial(coding, starts=1.5)),
        row("coding_agents_70b", partial(coding, starts=0.7), **large),
        row("few_shot", partial(mixes.few_shot, rate=250, seconds=MIX_S / 2), block_size=16),
        row("fan_out", partial(mixes.fan_out, rate=0.8, seconds=2 * MIX_S)),
        row("chats", partial(chats, starts=3.0)),
        row("chats_on_and_off", partial(chats, starts=4.0, on_s=10.0)),
        row("unique", partial(unique, rate=40)),
        row("unique_near_saturation", partial(unique, rate=48)),
        row("short", partial(unique, rate=200, mean=150, most=400, answer=60)),
        row("giants", partial(unique, rate=25, giants=0.02)),
        row("two_hardwares", partial(chats, starts=1.5), profiles=[*[H100_8B] * 4, *[L4] * 4]),
    ]
