"""Recovery of a BLIND stream, compared with the cache of a simulated engine.

`BlindRecoveryWorld` plays both sides: the engine's prefix cache, which stores, evicts and announces as vLLM
does, and the events and answers that a gateway receives which started late.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from engines.sim.cache import CachedSequence, PrefixCache
from gateway.core.blocks import BlockHash, Tokens, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, KvEvent
from gateway.core.worker import WorkerId
from gateway.index.base import Applied, Index
from gateway.index.blind_recovery import (
    FADE_S,
    MAX_REPEATED,
    MAX_SENT,
    PATIENCE_S,
    QUIET_REQUESTS,
    RARELY,
    SETTLE_S,
    BlindRecovery,
)
from gateway.index.inventory import Inventory
from gateway.index.memory import MemoryIndex
from gateway.index.reference import ReferenceIndex
from gateway.replication.codec import decode, encode
from gateway.replication.messages import LogBatch

W = WorkerId("w:1")
SIZE = 4
ROOT = root_hash("m")
KEEP_S = 100.0


class BlindRecoveryWorld:
    def __init__(
        self, make: Callable[[], Index], num_blocks: int = 200, *, can_report: bool = False, **cache: Any
    ) -> None:
        self.engine = PrefixCache(num_blocks, SIZE, **cache)
        self.index = make()
        self.now = 0.0
        self.index.add_worker(W, ROOT, SIZE)
        self.recovery = BlindRecovery(
            W,
            self.index,
            root=ROOT,
            block_size=SIZE,
            can_report=can_report,
            keep_s=KEEP_S,
            clock=lambda: self.now,
        )
        self.num_sent = 0

    def become_blind(self) -> None:
        """Lose all events until now, and make the stream BLIND."""
        self.engine.take_events()
        self.recovery.set_blind(is_blind=True)

    def deliver_events(self) -> None:
        """Apply the engine's events as the gateway does."""
        for event in self.engine.take_events():
            self.recovery.apply(event)

    def hashes(self, ids: Sequence[int], salt: str | None = None, lora: str | None = None) -> list[BlockHash]:
        extra = prompt_extra_keys(lora, salt, len(ids) // SIZE)
        return hash_blocks(tokens_of(ids), SIZE, ROOT, extra)

    def run(
        self,
        ids: Sequence[int],
        *,
        output: Sequence[int] = (),
        salt: str | None = None,
        lora: str | None = None,
        reports: bool = False,
    ) -> int:
        """Compute a prompt in the engine, past the gateway; the number of its blocks that were cached."""
        sequence = CachedSequence(tokens_of(ids), lora, salt, reports_hit=reports)
        hit = self.engine.find(sequence)
        assert self.engine.allocate(sequence, hit, len(ids))
        for token in output:
            sequence.tokens.append(token)
            assert self.engine.allocate(sequence, [], len(sequence.tokens))
        self.engine.free(sequence)
        return len(hit)

    def ask(
        self, ids: Sequence[int], *, settle: bool = True, has_usage: bool = True, **options: Any
    ) -> tuple[int, int]:
        """Send a request through the gateway; its predicted and its cached blocks."""
        self.num_sent += 1
        id, hashes = str(self.num_sent), self.hashes(ids, options.get("salt"), options.get("lora"))
        predicted = min(self.known(hashes), (len(ids) - 1) // SIZE)
        asks = self.recovery.sent(id, [tokens_of(ids)], [hashes]) if self.recovery.is_blind else False
        cached = self.run(ids, reports=asks, **options)
        self.deliver_events()
        self.recovery.answered(id, cached * SIZE if has_usage else None)
        if settle:
            self.settle()
        return predicted, cached

    def settle(self) -> None:
        self.now += SETTLE_S
        self.tick()

    def tick(self) -> None:
        while self.recovery.tick():
            pass

    def known(self, hashes: Sequence[BlockHash]) -> int:
        return self.index.overlap(hashes).get(W, 0)

    def engine_hashed(self) -> set[BlockHash]:
        return {block for block in self.index.blocks(W) if block not in self.recovery.proofs}

    def cached(self) -> set[BlockHash]:
        return {block for _, block, _ in self.engine.held()}


class FollowingIndex(MemoryIndex):
    """An index that follows an inventory's log, as gateways do with Redis."""

    def add_worker(self, worker: WorkerId, root: BlockHash, block_size: int | None) -> None:
        super().add_worker(worker, root, block_size)
        self.inventory = Inventory(root, SIZE)

    def apply(self, worker: WorkerId, event: KvEvent) -> None:
        batch = decode(encode(LogBatch(1, 0, self.inventory.apply(event), None)))
        assert isinstance(batch, LogBatch)
        for change in batch.changes:
            super().apply(worker, change)
        assert super().applied(worker).num_orphans == 0

    def reset_worker(self, worker: WorkerId) -> None:
        super().reset_worker(worker)
        self.inventory.reset()

    def applied(self, worker: WorkerId) -> Applied:
        return self.inventory.applied

    def find(self, worker: WorkerId, name: EngineHash) -> BlockHash | None:
        return self.inventory.find(name)

    def overlap(
        self, hashes: Sequence[BlockHash], most: int | None = None, *, drops_last: bool = False
    ) -> Mapping[WorkerId, int]:
        found = super().overlap(hashes, most, drops_last=drops_last)
        assert self.inventory.leading(hashes) == found.get(W, 0)
        return found


@pytest.fixture(params=[MemoryIndex, ReferenceIndex, FollowingIndex])
def make(request: pytest.FixtureRequest) -> Callable[[], Index]:
    chosen: Callable[[], Index] = request.param
    return chosen


HOT = list(range(100, 140))  # ten blocks, a prefix of many prompts


def warm(make: Callable[[], Index], *prompts: Sequence[int], **options: Any) -> BlindRecoveryWorld:
    world = BlindRecoveryWorld(make, **options)
    for ids in prompts or [HOT]:
        world.run(ids)
    world.become_blind()
    return world


# answers ---------------------------------------------------------------------------------------


def test_due_work_is_done_in_portions(make: Callable[[], Index]) -> None:
    prompts = [[number] * 8 for number in range(1, 6)]
    world = warm(make, *prompts)
    for ids in prompts:
        assert world.ask([*ids, *range(100 * ids[0], 100 * ids[0] + 9)], settle=False)[1] == 2
    world.now += SETTLE_S
    assert [world.recovery.tick() for _ in prompts] == [True] * 4 + [False]
    assert (world.recovery.counts.num_placed, len(world.recovery.orphans)) == (10, 0)
    world.now += KEEP_S
    assert [world.recovery.tick() for _ in range(6)] == [True] * 5 + [False]
    assert len(world.recovery.proofs) == 0


def test_answer_proves_its_leading_blocks_until_they_expire(make: Callable[[], Index]) -> None:
    world = warm(make)
    assert world.ask([*HOT, 1, 2, 3], settle=False) == (0, 10)
    assert world.known(world.hashes(HOT)) == 10
    assert world.ask([*HOT, 4, 5, 6]) == (10, 10)
    assert (world.recovery.counts.num_proven, len(world.recovery.proofs)) == (10, 10)
    world.now += KEEP_S - 1
    world.tick()
    assert world.known(world.hashes(HOT)) == 10
    world.now += SETTLE_S + 1
    world.tick()
    assert (world.known(world.hashes(HOT)), world.index.num_blocks(W)) == (0, 0)


def test_answer_with_fewer_cached_blocks_withdraws_the_others(make: Callable[[], Index]) -> None:
    world = warm(make, num_blocks=20)
    world.ask([*HOT, 1, 2, 3])
    world.run(range(500, 552))  # evicts the hot blocks' tail, by unknown engine hashes
    world.deliver_events()
    predicted, cached = world.ask([*HOT, 7, 7, 7])
    assert cached < predicted == 10
    assert world.recovery.counts.num_withdrawn == 10 - cached
    assert world.engine_hashed() <= world.cached()


def test_answer_to_a_request_before_a_reset_proves_nothing(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.recovery.sent("a", [tokens_of(HOT)], [world.hashes(HOT)])
    world.index.reset_worker(W)
    world.recovery.reset(is_restart=True)
    world.recovery.answered("a", 40)
    assert world.index.num_blocks(W) == 0


def test_answer_without_usage_proves_nothing(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.ask([*HOT, 1, 2, 3], has_usage=False)
    world.recovery.answered("1", 40)  # a second end of the same request proves nothing either
    world.recovery.answered("unknown", 40)
    assert world.index.num_blocks(W) == 0


def test_clear_removes_proven_blocks(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.ask([*HOT, 1, 2, 3])
    assert world.engine.reset()
    world.deliver_events()
    assert (world.index.num_blocks(W), len(world.recovery.proofs)) == (0, 0)
    world.recovery.set_blind(is_blind=False)
    assert world.index.num_blocks(W) == 0


# runs ------------------------------------------------------------------------------------------


def test_run_behind_a_sent_prompt_is_located_and_removed_by_its_engine_hashes(
    make: Callable[[], Index],
) -> None:
    world = warm(make, num_blocks=40)
    tail, output = list(range(1, 10)), list(range(50, 60))
    assert world.ask([*HOT, *tail], output=output) == (0, 10)
    assert world.recovery.counts.num_placed == 4
    assert world.known(world.hashes([*HOT, *tail, *output])) == 14
    # The parent is known by its engine hash, the nine blocks before it are proven only.
    assert len(world.engine_hashed()) == 5
    world.run(range(1000, 1150))  # evicts all other blocks
    world.deliver_events()
    assert world.engine_hashed() <= world.cached()
    assert world.known(world.hashes([*HOT, *tail])) <= 9


def test_run_behind_a_located_run_finds_its_parent(make: Callable[[], Index]) -> None:
    world = warm(make)
    first = [*HOT, *range(1, 10)]
    world.ask(first, output=range(50, 60))
    second = [*first, *range(50, 60), *range(70, 90)]
    predicted, cached = world.ask(second)
    assert predicted == cached == 14
    assert world.known(world.hashes(second)) == len(second) // SIZE
    assert world.index.applied(W).num_orphans == 4  # of the first run alone


def test_orphan_runs_behind_one_another_are_located_together(make: Callable[[], Index]) -> None:
    """Orphan runs follow orphan runs of requests past the gateway, until a request matches one of them."""
    world = warm(make)
    first = [*HOT, *range(1, 9)]
    world.run(first)
    world.run([*first, *range(11, 19)])
    world.run([*first, *range(21, 29)])
    world.deliver_events()
    assert (len(world.recovery.orphans), world.engine_hashed()) == (3, set())
    longer = [*first, *range(11, 19), *range(31, 39)]
    world.ask(longer)
    assert (len(world.recovery.orphans), len(world.engine_hashed())) == (0, 9)
    assert world.known(world.hashes(longer)) == len(longer) // SIZE
    assert world.known(world.hashes([*first, *range(21, 29)])) == 14


def test_blocks_removed_before_the_match_are_not_located(make: Callable[[], Index]) -> None:
    world = warm(make)
    hashes = world.hashes([*HOT, *range(1, 9)])
    world.recovery.sent("a", [tokens_of([*HOT, *range(1, 9)])], [hashes])
    world.run([*HOT, *range(1, 9)])
    (run,) = (event for event in world.engine.take_events() if isinstance(event, BlocksStored))
    world.recovery.apply(run)
    assert run.parent is not None
    world.recovery.apply(BlocksRemoved([run.engine_hashes[1]]))
    world.recovery.apply(BlocksRemoved([run.parent]))
    world.recovery.answered("a", 40)
    world.settle()
    assert world.engine_hashed() == {hashes[10]}
    assert world.known(hashes) == 9  # the tenth is removed, and with it the blocks behind it


def test_run_that_matches_two_prompts_is_not_located(make: Callable[[], Index]) -> None:
    """Two requests in flight ask the same question behind two system prompts."""
    other = list(range(200, 240))
    world = warm(make, HOT, other)
    asked = list(range(1, 9))
    for id, prefix in (("a", HOT), ("b", other)):
        ids = [*prefix, *asked]
        world.recovery.sent(id, [tokens_of(ids)], [world.hashes(ids)])
    world.run([*HOT, *asked])
    world.deliver_events()
    world.recovery.answered("a", 40)
    world.settle()
    assert world.engine_hashed() == set()


def test_two_runs_that_match_a_prompt_are_not_located(make: Callable[[], Index]) -> None:
    """A request past the gateway asks the same question behind a system prompt unknown to the gateway."""
    other = list(range(200, 240))
    world = warm(make, HOT, other)
    world.run([*other, *range(1, 9)])
    world.ask([*HOT, *range(1, 9)])
    assert world.engine_hashed() == set()


def test_match_of_a_run_includes_the_adapter(make: Callable[[], Index]) -> None:
    world = BlindRecoveryWorld(make)
    world.run(HOT, lora="a")
    world.become_blind()
    ids = [*HOT, *range(1, 9)]
    world.recovery.sent("base", [tokens_of(ids)], [world.hashes(ids)])
    world.run(ids, lora="a")
    world.deliver_events()
    world.recovery.answered("base", 40)  # as if the base model had the prefix cached too
    world.settle()
    assert world.engine_hashed() == set()
    world.ask([*ids, *range(20, 28)], lora="a")
    assert world.known(world.hashes([*ids, *range(20, 28)], lora="a")) == 14


def test_run_from_before_the_request_is_not_matched(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.run([*HOT, *range(1, 9)])
    world.deliver_events()
    world.now += 10
    assert world.ask([*HOT, *range(1, 9), 5]) == (0, 12)
    assert world.engine_hashed() == set()


@pytest.mark.parametrize(("wait_s", "num_engine_hashed"), [(SETTLE_S, 3), (PATIENCE_S + 1, 0)])
def test_run_is_matched_for_a_while_after_the_answer(
    make: Callable[[], Index], wait_s: float, num_engine_hashed: int
) -> None:
    world = warm(make)
    ids = [*HOT, *range(1, 9)]
    world.recovery.sent("a", [tokens_of(ids)], [world.hashes(ids)])
    world.run(ids)
    world.recovery.answered("a", 40)
    world.now += wait_s
    world.tick()
    world.deliver_events()
    world.settle()
    assert len(world.engine_hashed()) == num_engine_hashed


def test_orphan_runs_from_before_the_stream_was_blind_are_kept(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.run([*HOT, *range(1, 9)])
    events: list[KvEvent] = [*world.engine.take_events(), BlocksCleared()]
    world.recovery.look_back(events)
    assert world.recovery.orphans.num_blocks == 2


# announcements ---------------------------------------------------------------------------------


def test_requests_ask_for_an_announcement_until_their_blocks_are_known(make: Callable[[], Index]) -> None:
    world = warm(make, can_report=True)
    ids = [*HOT, *range(1, 9)]
    assert world.ask(ids) == (0, 10)
    assert world.engine_hashed() == world.cached()
    assert world.ask([*ids, 5]) == (12, 12)
    assert world.recovery.counts.num_reports == 1
    world.ask([*HOT, *range(20, 29)])  # another branch might have been cached
    world.ask([*HOT, *range(20, 29)])
    assert world.recovery.counts.num_reports == 2


def test_announcement_adds_no_copy(make: Callable[[], Index]) -> None:
    """Announcements for other processes add no copy either; after a restart copies count again."""
    world = warm(make, can_report=True, num_blocks=40)
    world.ask([*HOT, *range(1, 9)])
    for _ in range(3):
        world.run([*HOT, 9], reports=True)
        world.deliver_events()
    world.run(range(1000, 1150))
    world.deliver_events()
    assert world.engine_hashed() == world.cached()
    world.index.reset_worker(W)
    world.recovery.reset(is_restart=True)
    world.recovery.set_blind(is_blind=False)
    world.recovery.reset(is_restart=True)
    assert not world.recovery.was_blind


def test_copies_count_again_a_while_after_a_clear(make: Callable[[], Index]) -> None:
    world = warm(make)
    assert world.engine.reset()
    world.deliver_events()
    world.recovery.set_blind(is_blind=False)
    for wait_s, was_blind in ((FADE_S, True), (1.0, False)):
        world.now += wait_s
        world.run([int(wait_s)] * 8)
        world.deliver_events()
        assert world.recovery.was_blind is was_blind
    world.recovery.set_blind(is_blind=True)
    world.run([9] * 8)
    world.deliver_events()
    world.recovery.set_blind(is_blind=False)  # by a replay of all events, requested announcements among them
    world.run([8] * 8)
    world.deliver_events()
    assert world.recovery.was_blind


@pytest.mark.parametrize("num_copies", [2, 3])
def test_run_behind_a_second_copy_finds_it_after_the_first_was_evicted(
    make: Callable[[], Index], num_copies: int
) -> None:
    world = warm(make, [1] * 8, num_blocks=64)
    copies = [CachedSequence(tokens_of(HOT)) for _ in range(num_copies)]  # computed at once: each has its own
    for copy in copies:
        assert world.engine.allocate(copy, [], len(HOT))
    world.deliver_events()
    world.engine.free(copies[0])
    evicting = CachedSequence(tokens_of(range(1000, 1000 + world.engine.num_free * SIZE)))
    assert world.engine.allocate(evicting, [], len(evicting.tokens))
    world.deliver_events()
    assert world.known(world.hashes(HOT)) == 0  # too low a count, not too high
    world.engine.free(evicting)
    ids = [*HOT, *range(1, 9)]
    world.run(ids)
    world.deliver_events()
    assert world.known(world.hashes(ids)) == 12
    assert world.engine_hashed() == world.cached()
    assert world.index.applied(W).num_orphans == 0
    assert len(world.recovery.orphans) == 0


def test_number_of_remembered_copies_is_bounded() -> None:
    world = warm(MemoryIndex, [1] * 8, num_blocks=2 * MAX_REPEATED)
    prompt = tokens_of(range(4 * MAX_REPEATED // 3))
    for _ in range(4):
        copies = [CachedSequence(prompt) for _ in range(2)]
        prompt = tokens_of(number + len(prompt) for number in prompt)
        for copy in copies:
            assert world.engine.allocate(copy, [], len(copy.tokens))
            world.engine.free(copy)
        world.deliver_events()
    assert len(world.recovery._repeated) <= MAX_REPEATED


def test_announcement_restores_a_missing_block(make: Callable[[], Index]) -> None:
    world = warm(make, can_report=True)
    world.ask([*HOT, 1, 2, 3])
    names = [name for name, block, _ in world.engine.held() if block in world.hashes(HOT)[3:5]]
    world.index.apply(W, BlocksRemoved(names))
    assert world.known(world.hashes(HOT)) == 3
    world.ask([*HOT, 4, 5, 6])
    assert world.engine_hashed() == world.cached()


def test_announcements_without_news_are_asked_for_rarely(make: Callable[[], Index]) -> None:
    world = warm(make, can_report=True, num_blocks=2000)
    for i in range(QUIET_REQUESTS + 10 * RARELY):
        world.ask([1000 + i] * 9)
    assert QUIET_REQUESTS <= world.recovery.counts.num_reports <= QUIET_REQUESTS + 11
    assert world.ask([*HOT, *range(1, 9)]) == (0, 10)


def test_engine_without_announcements_is_not_asked(make: Callable[[], Index]) -> None:
    world = warm(make)
    world.ask(HOT)
    assert world.recovery.counts.num_reports == 0


# all of it -------------------------------------------------------------------------------------


def test_number_of_sent_prompts_is_bounded() -> None:
    world = warm(MemoryIndex, num_blocks=8000)
    for i in range(MAX_SENT + 10):
        world.ask([1000 + i] * 9, settle=False)
    assert len(world.recovery._sent) == MAX_SENT
    assert repr(world.recovery).startswith(
        "Healing(w:1, blind=True, Proofs(0 blocks, 0 proofs), Orphans(0 runs"
    )


def test_change_of_state_is_reported_once(make: Callable[[], Index]) -> None:
    world = BlindRecoveryWorld(make)
    changes: list[bool] = []
    world.recovery.on_change = lambda recovery: changes.append(recovery.is_blind)
    for is_blind in (False, True, True, False, False):
        world.recovery.set_blind(is_blind=is_blind)
    assert changes == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("can_report", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_blocks_known_by_engine_hash_are_cached_by_the_engine(seed: int, can_report: bool) -> None:
    """Random prompts of a few pieces, so that equal tokens follow many prefixes; with salts, adapters,
    evictions, requests past the gateway and answers without usage."""
    rng = random.Random(seed)
    num_blocks = rng.choice([30, 60, 200])
    pieces = [[piece * 10 + i for i in range(rng.choice([4, 8, 6]))] for piece in range(5)]
    choices: list[Choice] = []
    for _ in range(300):
        ids = [token for _ in range(rng.randint(1, 5)) for token in rng.choice(pieces)]
        options: dict[str, Any] = {
            "salt": rng.choice([None, None, "s"]),
            "lora": rng.choice([None, None, "a"]),
        }
        if rng.random() < 0.3:
            options["output"] = rng.choice(pieces)
        choices.append((ids, options, rng.random() < 0.2, rng.random() < 0.9))
    packed, plain = (
        BlindRecoveryWorld(make, num_blocks, can_report=can_report) for make in (MemoryIndex, ReferenceIndex)
    )
    assert _play(packed, choices) == _play(plain, choices)
    assert packed.engine_hashed() == plain.engine_hashed()


Choice = tuple[list[int], dict[str, Any], bool, bool]


def _play(world: BlindRecoveryWorld, choices: Sequence[Choice]) -> list[tuple[int, int]]:
    """Predicted and cached blocks of each request; the first 50 requests come before the gateway starts."""
    played: list[tuple[int, int]] = []
    for ids, options, _, _ in choices[:50]:
        world.run(ids, **options)
    world.become_blind()
    for ids, options, is_foreign, has_usage in choices[50:]:
        if is_foreign:
            world.run(ids, **options)
            world.deliver_events()
        else:
            played.append(world.ask(ids, has_usage=has_usage, **options))
        assert world.engine_hashed() <= world.cached()
        world.now += 0.1
    return played


def test_tokens_are_matched_at_block_borders_only(make: Callable[[], Index]) -> None:
    world = warm(make)
    shifted: Tokens = tokens_of([*HOT, 1, *range(1, 9)])
    ids = [*HOT, *range(1, 9)]
    world.recovery.sent("x", [shifted], [world.hashes(shifted)])
    world.ask(ids)
    assert len(world.engine_hashed()) == 3
