"""Workers prove their isolation once for each process, and are asked again where they proved nothing."""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from engines import ENGINES
from gateway.core.eligibility import Eligibility, Isolation
from gateway.core.engine import EngineMetrics, ModelInfo
from gateway.core.fleet import Fleet
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.discovery.probed import Facts
from gateway.discovery.salt_prober import MAX_RANKS_AT_ONCE, RETRY_S, SaltProber, keep_proving
from tests.support.patience import patience

URL = "http://w:1"


class Engine:
    """Answers as an engine with ranks that keep a prompt's tokens, by salt or without a look at it.

    Requests that name no rank, or all if it is not `routed`, go to its ranks in turn."""

    def __init__(
        self, *, obeys: bool = True, reports: bool = True, num_ranks: int = 1, is_routed: bool = True
    ) -> None:
        self.obeys, self.reports, self.is_up = obeys, reports, True
        self.num_ranks, self.is_routed = num_ranks, is_routed
        self.shared_rank: int | None = None
        self.held: set[Any] = set()
        self.num_asked = 0

    async def post(self, url: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes | None:
        assert (url, path) == (URL, "/v1/completions")
        self.num_asked += 1
        if not self.is_up:
            return None
        assert ("x-data-parallel-rank" in headers) is (self.num_ranks > 1)
        rank = int(headers.get("x-data-parallel-rank", 0)) if self.is_routed else self.num_asked
        rank %= self.num_ranks
        obeys = self.obeys and rank != self.shared_rank
        key = (rank, body["cache_salt"] if obeys else None, *body["prompt"])
        cached = len(body["prompt"]) - 1 if key in self.held else 0
        self.held.add(key)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.reports else {}
        return json.dumps({"usage": usage | details}).encode()


def facts(start_s: float | None = 1.0, version: str = "0.5.23", num_ranks: int = 1) -> Facts:
    ranks = {rank: EngineMetrics(block_size=16, start_time_s=start_s) for rank in range(num_ranks)}
    return Facts(URL, "sglang", (ModelInfo("m", "m", None, 8192),), ranks, version=version)


def made(engine: Engine, *, needs_salt: bool = True) -> tuple[SaltProber, Eligibility, list[float]]:
    eligibility, now = Eligibility(ENGINES, needs_salt=needs_salt), [0.0]
    return SaltProber(eligibility, engine.post, clock=lambda: now[0]), eligibility, now


def refusals(eligibility: Eligibility, version: str | None, rank: int = 0) -> list[str]:
    worker = Worker(
        WorkerId("w:1"), URL, (ServedModel("m", "m"),), dp_rank=rank, engine="sglang", version=version
    )
    return [each.reason for each in eligibility.unusable(worker)]


@pytest.mark.parametrize("version", ["0.5.23", "0.5.10", None])
async def test_a_proof_overrules_the_version(version: str | None, caplog: pytest.LogCaptureFixture) -> None:
    for obeys in (True, False):
        prober, eligibility, _ = made(Engine(obeys=obeys))
        with caplog.at_level(logging.INFO):
            assert await prober.prove(facts())
        assert bool(refusals(eligibility, version)) is not obeys
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert caplog.messages[1].startswith(
        "worker http://w:1: tenants' caches are shared; it gets no tenant's "
    )
    prober.drop(URL)
    assert refusals(eligibility, "0.5.23") == []


async def test_without_a_proof_the_version_decides() -> None:
    prober, eligibility, _ = made(Engine(reports=False))
    assert await prober.prove(facts())
    assert eligibility.proofs[URL, 0].isolation is Isolation.UNKNOWN
    assert (len(refusals(eligibility, "0.5.23")), len(refusals(eligibility, "0.5.10"))) == (0, 1)


async def test_without_tenants_salts_nothing_is_asked() -> None:
    engine = Engine()
    prober, eligibility, _ = made(engine, needs_salt=False)
    assert not await prober.prove(facts())
    assert (engine.num_asked, eligibility.proofs) == (0, {})


async def test_each_process_proves_it_once() -> None:
    engine = Engine()
    prober, eligibility, now = made(engine)
    await prober.prove(facts())
    now[0] = 10 * RETRY_S
    assert not await prober.prove(facts())
    assert engine.num_asked == 3
    engine.obeys = False
    assert await prober.prove(facts(start_s=2.0)), "another process"
    assert engine.num_asked == 6 and eligibility.proofs[URL, 0].isolation is Isolation.SHARED
    engine.obeys = True
    assert await prober.prove(facts(start_s=2.0, version="0.6.0"))
    assert eligibility.proofs[URL, 0].isolation is Isolation.APART


async def test_a_process_without_a_start_time_proves_it_again_after_a_while() -> None:
    engine = Engine()
    prober, _, now = made(engine)
    await prober.prove(facts(start_s=None))
    for now[0], num in ((RETRY_S - 1, 3), (RETRY_S, 6)):
        await prober.prove(facts(start_s=None))
        assert engine.num_asked == num


async def test_what_follows_a_failure_is_not_asked() -> None:
    engine = Engine()
    engine.is_up = False
    prober, eligibility, now = made(engine)
    await prober.prove(facts())
    assert engine.num_asked == 1
    known = [facts(), None, replace(facts(), url="http://w:2")]
    assert prober.unproven(known) == [facts()]
    engine.is_up, now[0] = True, RETRY_S
    assert await prober.prove(facts())
    assert eligibility.proofs[URL, 0].isolation is Isolation.APART and prober.unproven(known) == []


async def test_a_worker_that_proved_nothing_is_asked_again() -> None:
    engine = Engine(reports=False)
    eligibility = Eligibility(ENGINES, needs_salt=True)
    now = iter(range(0, 10_000, int(RETRY_S)))
    prober = SaltProber(eligibility, engine.post, clock=lambda: float(next(now)))
    fleet = Fleet(eligibility=eligibility)
    fleet.add(Worker(WorkerId("w:1"), URL, (ServedModel("m", "m"),), engine="sglang", version="0.5.10"))
    await prober.prove(facts())
    assert not fleet.knows("m")
    engine.reports = True
    judged = asyncio.Event()

    def judge_again() -> None:
        fleet.judge_again()
        judged.set()

    task = asyncio.get_running_loop().create_task(
        keep_proving(prober, lambda: [facts()], judge_again, interval_s=0.0)
    )
    await asyncio.wait_for(judged.wait(), patience(20))
    task.cancel()
    assert fleet.knows("m")


async def test_ranks_are_asked_side_by_side() -> None:
    """Not all at once, which would be a burst."""
    num_open = most = 0

    async def post(url: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes | None:
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        await asyncio.sleep(0)
        num_open -= 1
        return None

    eligibility = Eligibility(ENGINES, needs_salt=True)
    await SaltProber(eligibility, post).prove(facts(num_ranks=3 * MAX_RANKS_AT_ONCE))
    assert most == MAX_RANKS_AT_ONCE and len(eligibility.proofs) == 3 * MAX_RANKS_AT_ONCE


async def test_each_rank_proves_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(num_ranks=3)
    engine.shared_rank = 1
    prober, eligibility, _ = made(engine)
    with caplog.at_level(logging.INFO):
        assert await prober.prove(facts(num_ranks=3))
    assert engine.num_asked == 9
    assert [len(refusals(eligibility, "0.5.23", rank)) for rank in range(3)] == [0, 1, 0]
    assert [message.split(": ")[0] for message in caplog.messages] == [f"worker {URL}#{i}" for i in range(3)]
    assert "are shared" in caplog.messages[1]
    assert not await prober.prove(facts(num_ranks=3))
    prober.drop(URL)
    assert eligibility.proofs == {} and engine.num_asked == 9


@pytest.mark.parametrize(("obeys", "isolation"), [(True, Isolation.UNKNOWN), (False, Isolation.SHARED)])
async def test_answers_of_several_ranks_prove_no_isolation(obeys: bool, isolation: Isolation) -> None:
    """The second request is cold at another rank; the third meets the first one's rank again."""
    prober, eligibility, _ = made(Engine(num_ranks=2, is_routed=False, obeys=obeys))
    await prober.prove(facts(num_ranks=2))
    assert {proof.isolation for proof in eligibility.proofs.values()} == {isolation}


async def test_a_rank_in_doubt_proves_it_again_alone() -> None:
    engine = Engine(num_ranks=2)
    prober, eligibility, now = made(engine)
    known = [facts(num_ranks=2)]
    await prober.prove(known[0])
    assert prober.unproven(known) == [] and not prober.doubt(URL, 1), "proven a moment ago"
    engine.shared_rank, now[0] = 1, RETRY_S
    assert prober.doubt(URL, 1) and not prober.doubt(URL, 1)
    assert refusals(eligibility, "0.5.23", 1) == [], "a suspicion is no proof"
    assert prober.doubted.is_set() and prober.unproven(known) == known
    assert await prober.prove(known[0])
    assert engine.num_asked == 9
    assert [len(refusals(eligibility, "0.5.23", rank)) for rank in (0, 1)] == [0, 1]
    assert prober.unproven(known) == [] and not prober.doubt("http://w:2", 0)


async def test_a_rank_in_doubt_is_asked_at_once() -> None:
    engine = Engine()
    prober, eligibility, now = made(engine)
    await prober.prove(facts())
    engine.obeys, now[0] = False, RETRY_S
    judged = asyncio.Event()
    task = asyncio.get_running_loop().create_task(
        keep_proving(prober, lambda: [facts()], judged.set, interval_s=3600.0)
    )
    prober.doubt(URL, 0)
    await asyncio.wait_for(judged.wait(), patience(20))
    task.cancel()
    assert eligibility.proofs[URL, 0].isolation is Isolation.SHARED and not prober.doubted.is_set()


async def test_an_engine_that_token_ids_would_end_is_not_asked() -> None:
    engine = Engine(obeys=True)
    prober, eligibility, _ = made(engine)
    assert not await prober.prove(replace(facts(), engine="mlx"))
    assert eligibility.proofs == {}
