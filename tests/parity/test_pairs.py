"""Pairing: workers that join are asked for tokens, and those with different tokens are no pair."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from gateway.core.fleet import Fleet
from gateway.core.worker import Role, Transfer, Worker, WorkerId
from gateway.parity.pairs import PairParity
from gateway.parity.prober import MAX_AT_ONCE, Prober
from gateway.parity.probes import PAIR_PROBES
from gateway.runtime.tasks import Tasks
from tests.support.fakes import worker


class PairsWorld:
    """Workers by name: p… computes prompts, d… answers.

    `tokens` are those that each makes of every prompt.
    """

    def __init__(self) -> None:
        self.fleet, self.tasks = Fleet(), Tasks()
        self.banned: dict[tuple[WorkerId, WorkerId], str] = {}
        self.parity = PairParity(self.fleet, self, Prober(self._post), self.tasks.start)
        self.tokens: dict[str, list[int]] = {}
        self.asked: Counter[str] = Counter()
        self.num_open = self.most_open = 0

    def ban(self, prefill: WorkerId, decode: WorkerId, why: str) -> bool:
        self.banned[prefill, decode] = why
        return True

    async def _post(self, url: str, path: str, body: object) -> bytes | None:
        assert path == "/tokenize"
        self.asked[url] += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(0)
        self.num_open -= 1
        tokens = self.tokens.get(url.removeprefix("http://"), [1, 2, 3])
        return msgspec.json.encode({"tokens": tokens}) if tokens else None

    def add(self, name: str, *, ranks: int = 1, connector: str = "nixl") -> Sequence[Worker]:
        role = {"p": Role.PREFILL, "d": Role.DECODE, "b": Role.BOTH}[name[0]]
        made = replace(worker(name), role=role, transfer=Transfer(connector))
        workers = [replace(made, id=WorkerId(f"{name}#{rank}")) for rank in range(ranks)]
        for only_rank in workers:
            self.fleet.add(only_rank)
        return workers

    async def join(self, *names: str, ranks: int = 1, connector: str = "nixl") -> None:
        for name in names:
            self.parity.joined(self.add(name, ranks=ranks, connector=connector))
        await self.settle()

    async def settle(self) -> None:
        while len(self.tasks):  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
def world() -> PairsWorld:
    return PairsWorld()


async def test_workers_that_agree_are_asked_once(world: PairsWorld) -> None:
    await world.join("p1", "d1", "d2")
    await world.join("d3")
    assert world.banned == {}
    assert set(world.asked.values()) == {len(PAIR_PROBES)}
    assert repr(world.parity) == "PairParity(4 asked)"


@pytest.mark.parametrize("names", [("p1", "d1", "d2"), ("d1", "p1", "d2"), ("d2", "d1", "p1")])
async def test_a_worker_with_other_tokens_is_no_pair(
    world: PairsWorld, names: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    world.tokens["d1"] = [1, 2, 4]
    for name in names:
        await world.join(name)
    ((pair, why),) = world.banned.items()
    assert pair == ("p1#0", "d1#0")
    assert "in a text they differ from token number 2 on" in why
    (record,) = caplog.records
    assert "p1#0 and d1#0: prompts differ" in record.getMessage()


async def test_ranks_of_one_server_are_compared_together(world: PairsWorld) -> None:
    world.tokens["p1"] = [1]
    await world.join("d1", ranks=2)
    await world.join("p1", ranks=2)
    assert set(world.banned) == {(f"p1#{i}", f"d1#{j}") for i in range(2) for j in range(2)}


async def test_workers_of_both_roles_that_differ_are_no_pair_in_either_direction(world: PairsWorld) -> None:
    world.tokens["b1"] = [1]
    await world.join("b1", "b2")
    assert set(world.banned) == {("b1#0", "b2#0"), ("b2#0", "b1#0")}


async def test_differing_templates_with_a_date_are_asked_again(world: PairsWorld) -> None:
    world.tokens["p1"] = [1, 19]
    await world.join("p1")
    world.tokens |= {"p1": [1, 20], "d1": [1, 20]}
    await world.join("d1")
    assert world.banned == {}
    assert world.asked["http://p1"] == 2 * len(PAIR_PROBES)


async def test_a_worker_without_tokenize_is_not_compared(world: PairsWorld) -> None:
    world.tokens["d1"] = []
    await world.join("p1", "d1")
    assert world.banned == {}


async def test_an_incompatible_pair_is_logged_and_not_compared(
    world: PairsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.tokens["d1"] = [1]
    await world.join("p1")
    await world.join("d1", connector="mooncake")
    assert world.banned == {}
    (record,) = caplog.records
    assert (
        record.getMessage() == "workers p1#0 and d1#0: not used as a pair (connectors differ: nixl, mooncake)"
    )


async def test_a_worker_without_a_transfer_is_not_asked(world: PairsWorld) -> None:
    world.parity.joined([worker("w")])
    assert not len(world.tasks)


async def test_a_restarted_worker_is_asked_again(world: PairsWorld) -> None:
    world.tokens["d1"] = [1]
    await world.join("p1", "d1")
    world.banned.clear()
    world.tokens["d1"] = [1, 2, 3]
    await world.join("d1")
    assert world.banned == {}


async def test_a_worker_that_leaves_while_asked_is_not_compared(world: PairsWorld) -> None:
    world.tokens["d1"] = [1]
    await world.join("p1")
    (d,) = world.add("d1")
    world.parity.joined([d])
    await asyncio.sleep(0)
    world.fleet.drop(d.id)
    await world.settle()
    assert world.banned == {}
    assert repr(world.parity) == "PairParity(1 asked)"


async def test_workers_that_join_together_are_asked_a_few_at_a_time(world: PairsWorld) -> None:
    await world.join("p1", *[f"d{number}" for number in range(5 * MAX_AT_ONCE)])
    assert world.most_open == MAX_AT_ONCE
