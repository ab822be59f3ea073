"""Decisions and answers, as they reach the recovery of workers with BLIND streams."""

import asyncio

import pytest

from gateway import request as make_request
from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.decision import Decided, Prompt
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import SETTLE_S, BlindRecovery
from gateway.ingest.blind_recovery import MAX_ASKING, RecoveryObserver, keep_recovering
from gateway.runtime.tasks import Tasks
from tests.support.fakes import BLOCK_SIZE, Known, decision, worker
from tests.support.patience import patience

IDS = tokens_of(range(10))
BLOCKS = hash_blocks(IDS, BLOCK_SIZE, root_hash("root"))
PROMPT = Prompt((IDS,), "ids")
REQUEST = make_request("/v1/completions", {"model": "m", "prompt": [1]})


class BlindStreamWorld:
    """Two workers; decisions go to the first."""

    def __init__(self) -> None:
        self.known = Known("a", "b")
        self.now = 0.0
        self.recovery_observer = RecoveryObserver(self.known.index, keep_s=60.0, clock=lambda: self.now)
        self.a, self.b = (self.open(name) for name in "ab")
        self.decided = decision("d1", "a", "b")

    def open(self, name: str) -> BlindRecovery:
        return self.recovery_observer.open(worker(name, block_size=BLOCK_SIZE), can_report=True)

    def ask(self, id: str = "d1", cached: int | None = 8, request: InferenceRequest = REQUEST) -> None:
        chosen = decision(id, "a", "b")
        assert chosen.worker.id == "a"
        self.recovery_observer.decided(Decided(chosen, PROMPT, [BLOCKS], request))
        usage = Usage(10, 1, cached)
        self.recovery_observer.answered(chosen, BLOCKS, usage)


@pytest.fixture
def world() -> BlindStreamWorld:
    return BlindStreamWorld()


def test_a_worker_with_an_exact_stream_is_not_recovered(world: BlindStreamWorld) -> None:
    world.ask()
    assert world.known.num_blocks("a") == 0
    assert repr(world.recovery_observer) == "RecoveryObserver(2 workers, 0 blind)"


def test_a_blind_worker_learns_from_its_own_requests(world: BlindStreamWorld) -> None:
    world.b.set_blind(is_blind=True)
    world.ask()
    assert world.known.num_blocks("a") == 0
    world.a.set_blind(is_blind=True)
    world.ask()
    assert (world.known.num_blocks("a"), world.known.num_blocks("b")) == (2, 0)
    world.a.set_blind(is_blind=False)
    assert (world.known.num_blocks("a"), repr(world.recovery_observer)) == (
        0,
        "RecoveryObserver(2 workers, 1 blind)",
    )


def test_a_request_computed_from_scratch_proves_no_block_gone(world: BlindStreamWorld) -> None:
    world.a.set_blind(is_blind=True)
    world.ask()
    body = {"model": "m", "prompt": [1], "prompt_logprobs": 1}
    world.ask("d2", 0, make_request("/v1/completions", body))
    assert (world.known.num_blocks("a"), world.a.counts.num_withdrawn, world.a.counts.num_reports) == (
        2,
        0,
        1,
    )
    world.ask("d3", 0)
    assert (world.known.num_blocks("a"), world.a.counts.num_withdrawn) == (0, 2)


def test_announcement_requests_are_known_until_answered(world: BlindStreamWorld) -> None:
    world.a.set_blind(is_blind=True)
    world.recovery_observer.decided(Decided(world.decided, PROMPT, [BLOCKS], REQUEST))
    assert "d1" in world.recovery_observer.asking
    world.recovery_observer.answered(world.decided, BLOCKS, Usage(10))
    assert "d1" not in world.recovery_observer.asking
    for i in range(MAX_ASKING + 5):
        world.recovery_observer.decided(Decided(decision(f"n{i}", "a"), PROMPT, [BLOCKS], REQUEST))
    assert len(world.recovery_observer.asking) == MAX_ASKING
    world.a.set_blind(is_blind=False)
    assert not world.recovery_observer.asking


def test_a_prompt_without_tokens_proves_nothing(world: BlindStreamWorld) -> None:
    world.a.set_blind(is_blind=True)
    world.recovery_observer.decided(Decided(world.decided, Prompt(), (), REQUEST))
    world.recovery_observer.answered(world.decided, (), Usage(10, 1, 8))
    assert world.known.num_blocks("a") == 0


async def test_proven_blocks_expire_without_a_request(world: BlindStreamWorld) -> None:
    world.a.set_blind(is_blind=True)
    world.ask()
    world.now = 60.0 + SETTLE_S
    tasks = Tasks()
    tasks.start("heal", keep_recovering(world.recovery_observer, 0))
    async with asyncio.timeout(patience(10)):
        while world.known.num_blocks("a"):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await tasks.stop()


def test_a_closed_subscription_is_not_recovered(world: BlindStreamWorld) -> None:
    world.a.set_blind(is_blind=True)
    world.recovery_observer.close(world.a)
    world.recovery_observer.close(world.a)
    world.known.index.drop_worker(WorkerId("a"))
    world.ask()
    world.a.set_blind(is_blind=False)
    assert (
        world.recovery_observer.get(WorkerId("a")),
        [name for name, _ in world.recovery_observer.items()],
    ) == (None, ["b"])
