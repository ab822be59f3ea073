"""Recovery of a worker with a rank store: its findings are in the journal, for all gateways."""

from collections.abc import Sequence

import pytest

from gateway import request as make_request
from gateway.core.blocks import BlockHash, hash_blocks, tokens_of
from gateway.core.decision import Decided, Prompt
from gateway.core.event_stream import StreamCounts, StreamState
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.index.blind_recovery import SETTLE_S
from gateway.index.inventory import LINKS
from gateway.ingest.blind_recovery import RecoveryObserver
from gateway.ingest.chunks import PORTION_BLOCKS
from gateway.replication.applier import Applier
from gateway.replication.codec import decode
from gateway.replication.follower import Follower
from gateway.replication.journal import JournalReader
from gateway.replication.messages import LogBatch
from tests.support.fakes import BLOCK_SIZE, Known, decision, payload, worker
from tests.support.worlds.shelf import ROOT, ShelfWorld, W

IDS = tokens_of([token for block in (1, 2, 3, 4) for token in [block] * BLOCK_SIZE] + [9])
BLOCKS = hash_blocks(IDS, BLOCK_SIZE, ROOT)
REQUEST = make_request("/v1/completions", {"model": "m", "prompt": [1]})
KEEP_S = 60.0


class Follows:
    """Another gateway, or the leader of the worker."""

    def __init__(self, reader: JournalReader) -> None:
        self.known = Known(W)
        self._reader = reader
        self._follower = Follower(StreamCounts())
        self._applier = Applier(W, self.known.index, self.known.assumed)

    @property
    def state(self) -> StreamState:
        return self._follower.state

    def num_known(self, blocks: Sequence[BlockHash] = BLOCKS) -> int:
        while (data := self._reader.next()) is not None:
            self._applier.apply(self._follower.advance(decode(data)))
        return self.known.index.overlap(blocks).get(W, 0)


class RecoveryTargetWorld(ShelfWorld):
    """Worker with a BLIND stream: its first batch was number 5, behind block 2."""

    def __init__(self) -> None:
        super().__init__(can_replay=False)
        self.own, self.time = self.follows(), 0.0
        self.healer = RecoveryObserver(self.own.known.index, keep_s=KEEP_S, clock=lambda: self.time)
        self.recovery = self.healer.open(
            worker(W, block_size=BLOCK_SIZE), can_report=False, target_of=self.subscription.recovery_target
        )
        self.subscription.recovery = self.recovery
        self.live(5, payload(3, parent=2))

    def follows(self) -> Follows:
        return Follows(self.rank.journal.read())

    def decide(self, id: str) -> None:
        self.healer.decided(Decided(decision(id, W), Prompt((IDS,), "ids"), [BLOCKS], REQUEST))

    def answer(self, id: str, cached_blocks: int) -> None:
        usage = Usage(len(IDS), 1, cached_blocks * BLOCK_SIZE)
        self.healer.answered(decision(id, W), BLOCKS, usage)

    def ask(self, cached_blocks: int, id: str = "d1") -> None:
        self.decide(id)
        self.answer(id, cached_blocks)

    def settle(self, seconds: float = SETTLE_S) -> None:
        self.time += seconds
        while self.healer.tick():
            pass


@pytest.fixture
def world() -> RecoveryTargetWorld:
    return RecoveryTargetWorld()


def test_blocks_proven_by_an_answer_are_known_to_all_at_once(world: RecoveryTargetWorld) -> None:
    early = world.follows()
    assert (early.num_known(), early.state) == (0, StreamState.BLIND)
    wakes = world.num_wakes
    world.ask(2)
    assert (world.num_wakes, world.own.num_known(), early.num_known()) == (wakes + 1, 2, 2)
    assert repr(world.healer._targets[W]) == "RankRecoveryTarget(w:1, frozen=False)"


def test_a_late_follower_gets_proven_blocks_and_loses_them_when_they_expire(
    world: RecoveryTargetWorld,
) -> None:
    early, late = world.follows(), None
    world.ask(2)
    for _ in range(2):
        world.rank.journal.begin(world.store.next_epoch())  # with another snapshot
        late = world.follows()
        assert (early.num_known(), late.num_known()) == (2, 2)
    assert late
    world.settle(KEEP_S)
    assert (world.own.num_known(), early.num_known(), late.num_known()) == (0, 0, 0)
    assert late.known.index.applied(W).num_unknown_removals == 0


def test_an_orphan_run_finds_its_parent_at_every_gateway(world: RecoveryTargetWorld) -> None:
    early = world.follows()
    world.decide("d2")
    world.live(6, payload(3, 4, parent=2, ts=2))
    world.answer("d2", 2)
    world.settle()
    assert (world.own.num_known(), early.num_known()) == (4, 4)
    assert world.own.known.index.find(W, 4) == BLOCKS[3]
    world.store.apply(W, BlocksRemoved([4]))
    world.subscription.continue_work()
    assert (early.num_known(), world.follows().num_known()) == (3, 3)


def test_nothing_is_proven_or_expires_while_a_snapshot_is_made(world: RecoveryTargetWorld) -> None:
    early = world.follows()
    world.ask(1)
    world.rank.is_frozen = True
    journal = world.rank.journal.next_seq
    world.ask(2, "d2")
    world.settle(KEEP_S)
    assert (early.num_known(), world.rank.journal.next_seq) == (1, journal)
    world.rank.is_frozen = False
    world.settle()
    assert early.num_known() == 0
    world.answer("d2", 2)  # answered meanwhile
    assert early.num_known() == 0


def test_a_proof_within_a_batch_of_the_engine_has_no_position(world: RecoveryTargetWorld) -> None:
    world.live(6, payload(*range(10, 10 + 3 * PORTION_BLOCKS), ts=2))
    world.updates()
    world.ask(2)
    (batch,) = world.updates()
    assert isinstance(batch, LogBatch) and batch.changes and batch.position is None
    while world.subscription.continue_work():
        pass
    assert world.updates()[-1].position.next_seq == 7


def test_a_takeover_withdraws_proofs(world: RecoveryTargetWorld) -> None:
    early = world.follows()
    world.ask(2)
    assert early.num_known() == 2
    position = world.rank.journal.position
    world.store.withdraw_proofs(W)
    world.store.withdraw_proofs(W)
    assert (early.num_known(), world.rank.inventory.num_blocks) == (0, 0)
    *_, batch = [update for update in world.updates() if isinstance(update, LogBatch)]
    assert (list(batch.changes), batch.position) == ([BlocksRemoved(BLOCKS[:2], *LINKS)], position)


def test_a_lost_lease_ends_recovery(world: RecoveryTargetWorld) -> None:
    world.healer.close(world.recovery)
    world.ask(2)
    world.settle()
    assert (world.own.num_known(), world.healer._targets) == (0, {})


def test_other_kv_groups_bound_proven_blocks(world: RecoveryTargetWorld) -> None:
    """The rank store has only the hashes of their blocks: our own index joins them."""
    window = BlocksStored(
        [7], None, tokens_of([]), BLOCK_SIZE, None, "GPU", 1, "sliding_window", 2 * BLOCK_SIZE
    )
    shelved = world.healer._targets[W]
    world.ask(2)
    assert shelved.overlap(BLOCKS) == {W: 2}
    world.live(6, payload(1, ts=2))
    assert (shelved.overlap(BLOCKS), world.own.num_known()) == ({W: 2}, 2)
    world.store.apply(W, window)
    world.subscription.continue_work()
    assert (world.own.num_known(), world.rank.inventory.leading(BLOCKS)) == (0, 2)
    assert shelved.overlap(BLOCKS) == {}
    assert shelved.find(WorkerId(W), 1) == BLOCKS[0]
