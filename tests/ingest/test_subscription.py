"""Events of a worker from frames to the index, and the states that are reported."""

from collections.abc import Sequence

import pytest
from msgspec import msgpack

from engines.vllm import Vllm
from gateway.core.block_limits import BlockLimits
from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import EventBatch, ReplayUnavailable
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.blind_recovery import BlindRecovery
from gateway.index.memory import MemoryIndex
from gateway.ingest.block_size import SizeEvidence
from gateway.ingest.chunks import PORTION_BLOCKS
from gateway.ingest.subscription import SMALL_BYTES, Subscription
from tests.support.fakes import BLOCK_SIZE, END, FakeEngine, Known, payload, seq_frame

W, ROOT = WorkerId("w:1"), root_hash("m")


class SubscriptionWorld:
    """Subscription to one worker; `asked` are the replays that it asked for."""

    def __init__(
        self, *, can_replay: bool = True, heals: bool = False, limits: BlockLimits | None = None
    ) -> None:
        self.known = Known("w:1")
        self.recovery = BlindRecovery(
            W,
            self.known.index,
            root=root_hash("root"),
            block_size=BLOCK_SIZE,
            can_report=False,
            keep_s=60.0,
            clock=lambda: 0.0,
        )
        self.asked: list[int] = []
        self.states: list[StreamState] = []
        self.subscription = Subscription(
            W,
            engine=FakeEngine(),
            index=self.known.index,
            assumed=self.known.assumed,
            can_replay=can_replay,
            on_state=lambda worker, state: self.states.append(state),
            recovery=self.recovery if heals else None,
            limits=limits,
        )
        self.subscription.ask_replay = self.asked.append

    def live(self, seq: int, body: bytes) -> None:
        self.subscription.live([b"kv", seq_frame(seq), body])

    def replay(self, *batches: tuple[int, bytes]) -> None:
        """Replay these batches, old style and new in turn, and the end."""
        for seq, body in batches:
            head = [b"", b"kv"] if seq % 2 else [b""]
            assert not self.subscription.replayed([*head, seq_frame(seq), body])
        assert self.subscription.replayed([b"", END, b""])

    @property
    def num_blocks(self) -> int:
        return self.known.num_blocks("w:1")


def exact(*bodies: bytes) -> SubscriptionWorld:
    world = SubscriptionWorld()
    world.subscription.connected()
    world.replay(*enumerate(bodies))
    assert world.states == [StreamState.CATCHING_UP, StreamState.EXACT]
    return world


def test_a_start_is_replayed_and_then_followed() -> None:
    world = SubscriptionWorld()
    world.subscription.connected()
    world.live(1, payload(2, parent=1, ts=2))  # held: the replay comes first
    assert (world.asked, world.num_blocks) == ([0], 0)
    world.replay((0, payload(1)), (1, payload(2, parent=1, ts=2)))
    world.live(2, payload(3, parent=2, ts=3))
    assert world.num_blocks == 3
    assert world.states == [StreamState.CATCHING_UP, StreamState.EXACT]
    assert repr(world.subscription) == "Subscription(w:1, Stream(exact, epoch=0, next_seq=3, held=0))"


def test_a_gap_is_asked_for() -> None:
    world = exact(payload(1))
    world.live(2, payload(3, parent=2, ts=3))
    assert world.asked == [0, 0]
    world.replay((0, payload(1)), (1, payload(2, parent=1, ts=2)))
    assert world.num_blocks == 3
    assert world.states[-2:] == [StreamState.CATCHING_UP, StreamState.EXACT]


def test_without_replays_a_gap_resets_and_leaves_the_stream_blind() -> None:
    world = SubscriptionWorld(can_replay=False)
    world.subscription.connected()
    world.live(0, payload(1, 2))
    assert (world.num_blocks, world.states) == (2, [StreamState.BLIND, StreamState.EXACT])
    world.live(5, payload(7, ts=9))
    assert (world.num_blocks, world.states[-1]) == (1, StreamState.BLIND)


def test_another_engine_under_the_same_numbers_resets_the_worker() -> None:
    world = exact(payload(1, 2))
    world.known.assumed.pin(W, [8])  # type: ignore[list-item]
    world.known.assumed.unpin(W, [8], 0.0, was_run=True)  # type: ignore[list-item]
    world.subscription.disconnected()
    world.subscription.connected()
    # The last known batch has another digest: a replay from the start is asked for.
    assert not world.subscription.replayed([b"", seq_frame(0), payload(5, ts=99)])
    assert (world.num_blocks, world.asked) == (0, [0, 0, 0])
    assert world.known.assumed.num_kept(W) == 0
    world.replay((0, payload(5, ts=99)))
    assert (world.num_blocks, world.states[-1]) == (1, StreamState.EXACT)


def test_a_failed_replay_is_reported_and_repeated_only_while_blind(caplog: pytest.LogCaptureFixture) -> None:
    world = SubscriptionWorld()
    world.subscription.connected()
    world.live(4, payload(1))
    world.subscription.replay_failed("no answer from tcp://x")
    assert (world.states[-1], world.num_blocks) == (StreamState.BLIND, 1)
    assert "worker w:1: replay of KV events failed: no answer from tcp://x" in caplog.text
    world.subscription.resync()
    assert (world.states[-1], world.asked) == (StreamState.CATCHING_UP, [0, 0])
    world.replay((0, payload(1)))
    world.subscription.resync()
    assert (world.states[-1], world.num_blocks) == (StreamState.EXACT, 1)


# misplaced blocks ------------------------------------------------------------------------------


def test_blocks_without_a_known_parent_are_replayed_once_then_the_stream_is_blind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    world = exact(payload(1))
    world.live(1, payload(9, parent=77, ts=2))
    assert (world.num_blocks, world.asked, world.states[-1]) == (0, [0, 0], StreamState.CATCHING_UP)
    world.replay((0, payload(1)), (1, payload(9, parent=77, ts=2)))
    world.live(2, payload(8, parent=77, ts=3))
    assert (world.num_blocks, world.asked, world.states[-1]) == (1, [0, 0], StreamState.BLIND)
    assert world.known.index.applied(W).num_orphans == 3
    (record,) = caplog.records
    assert "batch 1 has blocks with an unknown parent" in record.getMessage()


def test_a_replay_that_brings_the_parent_ends_the_doubt() -> None:
    """The parent was lost on its way."""
    world = exact(payload(1))
    world.live(1, payload(3, parent=2, ts=2))
    world.replay((0, payload(1, 2)), (1, payload(3, parent=2, ts=2)))
    assert (world.num_blocks, world.states[-1]) == (3, StreamState.EXACT)


def test_a_cleared_cache_ends_the_doubt() -> None:
    world = SubscriptionWorld(can_replay=False)
    world.live(0, payload(1))
    world.live(1, payload(9, parent=77, ts=2))
    assert world.states[-1] is StreamState.BLIND
    world.live(2, payload(3, clear=True, ts=3))
    assert (world.states[-1], world.num_blocks) == (StreamState.EXACT, 1)


def test_an_undecodable_batch_resets_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    world = exact(payload(1), payload(2, parent=1, ts=2))
    world.live(2, b"?")
    assert (world.states[-1], world.num_blocks) == (StreamState.BLIND, 0)
    world.live(3, b"?")
    world.live(4, payload(5, ts=5))
    assert (world.subscription.stream.counts.num_undecodable, world.num_blocks) == (2, 1)
    assert sum("cannot be decoded" in record.getMessage() for record in caplog.records) == 1


def test_an_undecodable_batch_in_a_replay_resets_the_worker() -> None:
    world = SubscriptionWorld()
    world.subscription.connected()
    world.replay((0, payload(1)), (1, b"?"), (2, payload(3, ts=3)))
    assert world.subscription.stream.counts.num_undecodable == 1
    assert (world.num_blocks, world.states[-1]) == (1, StreamState.BLIND)


@pytest.mark.parametrize("frames", [[], [b"one"], [b"kv", b"short", b"{}"]])
def test_a_message_without_a_number_is_counted_and_leaves_the_stream_blind(frames: list[bytes]) -> None:
    world = exact(payload(1))
    world.subscription.live(frames)
    assert world.subscription.stream.counts.num_undecodable == 1
    assert world.states[-1] is StreamState.BLIND
    world.live(1, payload(2, parent=1, ts=2))
    assert world.num_blocks == 2


def test_states_are_reported_exactly_when_they_change() -> None:
    world = exact(payload(1))
    for seq in range(1, 5):
        world.live(seq, payload(seq + 1, parent=seq, ts=seq + 1))
    assert len(world.states) == 2


# portions ----------------------------------------------------------------------------------------


def many(num_portions: int) -> bytes:
    return payload(*range(1, num_portions * PORTION_BLOCKS + 1))


def test_a_large_batch_is_applied_in_portions_and_its_state_reported_at_the_end() -> None:
    world, asked = SubscriptionWorld(), list[int]()
    world.subscription.behind = lambda: asked.append(world.num_blocks)
    world.subscription.connected()
    assert not world.subscription.replayed([b"", seq_frame(0), many(3)])
    assert asked == [PORTION_BLOCKS]
    assert world.subscription.replayed([b"", END, b""])
    assert world.states == [StreamState.CATCHING_UP]
    while world.subscription.continue_work():
        assert world.states == [StreamState.CATCHING_UP]
    assert world.num_blocks == 3 * PORTION_BLOCKS
    assert world.states == [StreamState.CATCHING_UP, StreamState.EXACT]
    assert not world.subscription.continue_work()


def test_batches_that_come_meanwhile_wait() -> None:
    world = exact(payload(1))
    world.live(1, many(2))
    world.live(2, payload(clear=True, ts=2))
    world.live(3, payload(9, ts=3))
    while world.subscription.continue_work():
        assert world.num_blocks > 1
    assert world.num_blocks == 1


def test_a_doubt_in_the_last_portion_belongs_to_its_batch() -> None:
    world = exact(payload(1))
    world.live(1, many(2))
    world.live(2, payload(99_999, parent=77_777, ts=2))  # an unknown parent
    assert world.asked == [0]
    while world.subscription.continue_work():
        pass
    assert world.asked == [0, 0]  # the whole again
    assert world.states[-1] is StreamState.CATCHING_UP


# recovery ----------------------------------------------------------------------------------------


def test_a_blind_stream_keeps_orphans_until_their_parent_is_stored() -> None:
    world = SubscriptionWorld(heals=True)
    world.subscription.connected()
    world.replay((4, payload(9, parent=8)), (5, payload(10, parent=9, ts=2)))
    assert (world.states[-1], world.num_blocks) == (StreamState.BLIND, 0)
    assert (world.recovery.is_blind, world.recovery.orphans.num_blocks) == (True, 2)
    world.live(6, payload(7, 8, ts=3))  # from the root, as an announcement
    assert (world.num_blocks, len(world.recovery.orphans)) == (4, 0)
    assert world.recovery.describe()["adopted_orphan_blocks"] == 2
    world.live(7, payload(7, 8, ts=4))  # again: no second copy
    world.live(8, payload(ts=5, clear=True))
    assert (world.states[-1], world.num_blocks, world.recovery.is_blind) == (StreamState.EXACT, 0, False)


def test_the_run_that_raised_the_doubt_is_kept() -> None:
    world = SubscriptionWorld(can_replay=False, heals=True)
    world.live(0, payload(1))
    assert not world.recovery.was_blind
    world.live(1, payload(9, parent=8, ts=2))
    assert (world.recovery.is_blind, world.recovery.orphans.num_blocks) == (True, 1)
    world.live(2, payload(7, 8, ts=3))
    assert world.num_blocks == 4


def test_orphans_are_dropped_by_a_reset_and_a_restart() -> None:
    world = SubscriptionWorld(heals=True)
    world.subscription.connected()
    world.replay((4, payload(9, parent=8)))
    assert len(world.recovery.orphans) == 1
    world.live(0, payload(1, ts=9))
    assert (world.recovery.was_blind, len(world.recovery.orphans)) == (False, 0)
    world.replay((0, payload(1, ts=9)))
    assert (world.states[-1], world.num_blocks) == (StreamState.EXACT, 1)


def test_closing_is_reported() -> None:
    world, closed = SubscriptionWorld(), list[int]()
    world.subscription.close()
    world.subscription.on_close = lambda: closed.append(1)
    world.subscription.close()
    assert closed == [1]


# beyond the limit of a worker ------------------------------------------------------------------

LIMIT = 2_500


def test_blocks_beyond_the_limit_reset_the_worker_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = SubscriptionWorld(can_replay=False, limits=BlockLimits(on_gpu=LIMIT, offloaded=10, declared=7))
    pauses = iter([30.0])
    world.subscription.on_cut = lambda: next(pauses)
    for number in range(4):  # roots, and none removed
        first = number * PORTION_BLOCKS + 1
        world.live(number, payload(*range(first, first + PORTION_BLOCKS), ts=number + 1))
        while world.subscription.continue_work():
            pass
        if number < 2:
            assert world.num_blocks == (number + 1) * PORTION_BLOCKS
        elif number == 2:
            assert (world.num_blocks, world.states[-1]) == (0, StreamState.BLIND)
            break
    assert next(pauses, None) is None
    line = (
        "worker w:1: KV events paused for 30 s, stream is BLIND: "
        "it stores 3,088 blocks without removing them, beyond 2,500; it declares 7 on its GPU"
    )
    assert line in caplog.messages
    assert world.subscription.stream.counts.num_cuts == 1


def test_the_rest_of_a_batch_beyond_the_limit_is_dropped() -> None:
    world = SubscriptionWorld(can_replay=False, limits=BlockLimits(on_gpu=LIMIT, offloaded=10))
    world.live(0, many(10))
    while world.subscription.continue_work():
        pass
    assert (world.num_blocks, world.subscription.is_behind) == (0, False)
    assert world.subscription.stream.counts.num_cuts == 1


def test_a_worker_that_removes_blocks_stays_within_the_limit() -> None:
    world = SubscriptionWorld(can_replay=False, limits=BlockLimits(on_gpu=LIMIT, offloaded=10))
    for number in range(20):
        world.live(number, payload(*range(1, PORTION_BLOCKS + 1), ts=number + 1, clear=True))
        while world.subscription.continue_work():
            pass
    assert world.states[-1] is StreamState.EXACT
    assert world.subscription.stream.counts.num_cuts == 0


def test_a_large_message_is_decoded_in_steps_before_the_next_one() -> None:
    world = exact()
    behind: list[bool] = []
    world.subscription.behind = lambda: behind.append(True)
    body = payload(*range(1, PORTION_BLOCKS + 1))
    world.live(0, body + b" " * SMALL_BYTES)
    assert (behind, world.num_blocks, world.subscription.is_behind) == ([True], 0, True)
    while world.subscription.continue_work():
        pass
    assert (world.num_blocks, world.states[-1]) == (PORTION_BLOCKS, StreamState.EXACT)


def test_a_large_undecodable_message_resets_the_worker() -> None:
    world = exact(payload(1))
    world.live(1, b"x" * (SMALL_BYTES + 1))
    while world.subscription.continue_work():
        pass
    assert (world.num_blocks, world.states[-1]) == (0, StreamState.BLIND)
    assert world.subscription.stream.counts.num_undecodable == 1


def test_a_thousand_bad_batches_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = exact(payload(1))
    for number in range(1, 1_001):
        world.live(number, b"nonsense")
    assert world.subscription.stream.counts.num_undecodable == 1_000
    assert len([line for line in caplog.messages if "cannot be decoded" in line]) == 1


def test_an_undecodable_message_with_the_publishers_id_keeps_its_number() -> None:
    world = SubscriptionWorld()
    world.subscription.connected()
    world.replay()
    world.subscription.live([b"kv", seq_frame(0) + bytes(16), b"nonsense"])
    assert world.subscription.stream.next_seq == 1
    assert world.subscription.stream.state is StreamState.BLIND


def test_an_unavailable_replay_is_silence() -> None:
    class NoReplay(FakeEngine):
        def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
            raise ReplayUnavailable("none now")

    world = SubscriptionWorld()
    world.subscription._engine = NoReplay()
    world.subscription.connected()
    assert not world.subscription.replayed([b"", seq_frame(0), b""])
    assert world.subscription.stream.state is StreamState.CATCHING_UP
    assert world.subscription.stream.counts.num_undecodable == 0


@pytest.mark.parametrize(
    "numbers", [(10**12, 3, 7), (5, 4, 3), (2**63, 0, 2**63), (1, 1, 1), (2, 9, 4), (0, 2, 0)]
)
def test_a_replay_of_other_numbers_than_requested_is_never_taken_for_exact(numbers: tuple[int, ...]) -> None:
    """An engine that lies, then one that replays what it published: the blocks of the latter are known."""
    world = exact(payload(1), payload(2, parent=1, ts=2))
    world.live(4, payload(5, parent=4, ts=5))  # 2 and 3 are missing
    for number in numbers:
        world.subscription.replayed([b"", seq_frame(number), payload(77, ts=number + 1)])
    world.subscription.replayed([b"", END, b""])
    assert world.subscription.stream.state is not StreamState.EXACT
    if world.subscription.stream.state is StreamState.BLIND:
        world.subscription.resync()
    honest = [payload(1), *(payload(n + 1, parent=n, ts=n + 1) for n in range(1, 5))]
    for _ in range(3):
        if world.subscription.stream.state is StreamState.CATCHING_UP:
            world.replay(*list(enumerate(honest))[world.asked[-1] :])
    assert (world.states[-1], world.num_blocks) == (StreamState.EXACT, 5)


# media other than the GPU ------------------------------------------------------------------------


class TierWorld:
    """Subscription to a vLLM worker with blocks of 16 tokens."""

    def __init__(self, *, heals: bool = False, limits: BlockLimits | None = None) -> None:
        self.index, self.num = MemoryIndex(), 0
        self.index.add_worker(W, ROOT, 16)
        assumed = AssumedIndex()
        assumed.add_worker(W, keep_s=1.0, max_blocks=100)
        self.states: list[StreamState] = []
        self.asked: list[int] = []
        self.recovery = BlindRecovery(
            W, self.index, root=ROOT, block_size=16, can_report=False, keep_s=60.0, clock=lambda: 0.0
        )
        self.subscription = Subscription(
            W,
            engine=Vllm(),
            index=self.index,
            assumed=assumed,
            can_replay=True,
            on_state=lambda worker, state: self.states.append(state),
            recovery=self.recovery if heals else None,
            limits=limits,
            size=SizeEvidence(16),
        )
        self.subscription.ask_replay = self.asked.append
        self.subscription.connected()
        self.subscription.replayed([b"", END, b""])

    def live(self, *events: dict[str, object]) -> None:
        body = msgpack.encode([float(self.num), list(events), 0])
        self.subscription.live([b"", seq_frame(self.num), body])
        self.num += 1
        while self.subscription.continue_work():
            pass

    def depth(self, num_tokens: int) -> int:
        return self.index.overlap(hash_blocks(tokens_of(range(num_tokens)), 16, ROOT, None)).get(W, 0)


def run_of(names: list[object], first: int, size: int, **fields: object) -> dict[str, object]:
    tokens = list(range(first, first + size * len(names)))
    return {"type": "BlockStored", "block_hashes": names, "token_ids": tokens, "block_size": size, **fields}


CHUNK = run_of([1 << 40], 0, 256, medium="cpu")


@pytest.mark.parametrize("heals", [False, True])
@pytest.mark.parametrize(
    ("event", "is_credited"),
    [
        (CHUNK, True),
        (run_of([1 << 40], 256, 256, medium="cpu", parent_block_hash=0), False),
        (run_of([1 << 40], 0, 100, medium="disk"), False),
        (run_of([-5], 0, 256, medium="cpu"), False),
        (run_of([1 << 40], -1, 256, medium="cpu"), False),
        (run_of([1 << 40], 0, 256, medium="c" * 1000), False),
        ({**CHUNK, "block_size": "256"}, False),
        ({"type": "BlockStored", "block_hashes": [1 << 40], "medium": "STORAGE"}, False),
        ({"type": "BlockRemoved", "block_hashes": ["a"], "medium": "CPU"}, False),
    ],
    ids=[
        "chunk", "unknown parent", "other size", "negative name", "negative token", "long medium", "text",
        "unknown name", "unreadable removal",
    ],
)  # fmt: skip
def test_events_of_another_medium_leave_the_gpu_exact(
    event: dict[str, object], is_credited: bool, heals: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = TierWorld(heals=heals)
    world.live(run_of([1, 2], 0, 16))
    world.live(event, run_of([3], 32, 16, parent_block_hash=2))
    world.live(event)
    assert world.states[-1] is StreamState.EXACT
    assert (world.asked, world.subscription.stream.counts.num_undecodable) == ([0], 0)
    assert world.depth(256) == (16 if is_credited else 3)
    named = [line for line in caplog.messages if "only partly followed" in line]
    assert len(named) == (0 if is_credited else 1)
    assert bool(world.index.applied(W).unplaced) is not is_credited
    world.live(run_of([9], 32, 16, parent_block_hash=77))
    assert world.states[-1] is StreamState.CATCHING_UP, "the GPU's own events are judged as before"


def test_a_tier_beyond_its_limit_is_named_and_leaves_the_gpu_exact(caplog: pytest.LogCaptureFixture) -> None:
    world = TierWorld(limits=BlockLimits(on_gpu=1_000, offloaded=2_000))
    world.live(run_of([1, 2], 0, 16))
    for number in range(300):
        world.live(run_of([1000 + number], 1000 + number * 256, 256, medium="cpu"))
    assert (world.states[-1], world.subscription.stream.counts.num_cuts) == (StreamState.EXACT, 0)
    assert world.index.num_kept(W, on_gpu=False) <= 2_000 + PORTION_BLOCKS + 16 * 2
    assert world.depth(32) == 2
    assert [line for line in caplog.messages if "more than 2,000 blocks are outside the GPU" in line]


# the block size ----------------------------------------------------------------------------------


class SizeWorld(TierWorld):
    """Subscription to a worker that reports the block size `reported`, and may have another."""

    def __init__(self, reported: int | None, *, can_replay: bool = True) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.index.add_worker(W, ROOT, reported)
        self.asked.clear()
        self.subscription = Subscription(
            W,
            engine=Vllm(),
            index=self.index,
            assumed=AssumedIndex(),
            can_replay=can_replay,
            on_state=lambda worker, state: self.states.append(state),
            size=SizeEvidence(reported, self.resized),
        )
        self.subscription._assumed.add_worker(W, keep_s=1.0, max_blocks=100)
        self.subscription.ask_replay = self.asked.append
        self.subscription.connected()
        if can_replay:
            self.subscription.replayed([b"", END, b""])

    def resized(self, size: int) -> None:
        self.sizes.append(size)
        self.index.add_worker(W, ROOT, size)

    @property
    def state(self) -> StreamState:
        return self.subscription.stream.state


@pytest.mark.parametrize("can_replay", [True, False])
@pytest.mark.parametrize("reported", [None, 32, 8])
def test_the_first_events_show_the_block_size_and_are_applied(reported: int | None, can_replay: bool) -> None:
    world = SizeWorld(reported, can_replay=can_replay)
    world.live({"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"})
    world.live(run_of([1, 2], 0, 16), CHUNK)
    world.live(run_of([3], 32, 16, parent_block_hash=2))
    assert (world.sizes, world.depth(48), world.depth(256)) == ([16], 3, 16)
    assert (world.state, world.asked) == (StreamState.EXACT, [0] if can_replay else [])


def test_blocks_ignored_before_their_size_was_known_are_replayed() -> None:
    world = SizeWorld(32)
    world.live(run_of([1], 0, 16))
    assert (world.state, world.sizes) == (StreamState.EXACT, [])
    world.live(run_of([2], 16, 16, parent_block_hash=1))
    assert (world.sizes, world.state, world.asked) == ([16], StreamState.CATCHING_UP, [0, 0])
    for seq, event in enumerate([run_of([1], 0, 16), run_of([2], 16, 16, parent_block_hash=1)]):
        body = msgpack.encode([float(seq), [event], 0])
        assert not world.subscription.replayed([b"", seq_frame(seq), body])
    assert world.subscription.replayed([b"", END, b""])
    assert (world.state, world.depth(32), world.asked) == (StreamState.EXACT, 2, [0, 0])


def test_blocks_ignored_before_their_size_was_known_make_a_stream_without_replays_blind() -> None:
    world = SizeWorld(32, can_replay=False)
    world.live(run_of([1], 0, 16))
    world.live(run_of([2], 16, 16, parent_block_hash=1), run_of([3, 4], 100, 16))
    assert (world.state, world.sizes) == (StreamState.BLIND, [16])
    assert world.subscription.stream.blind_reason == "blocks came before their size was known"


def test_a_configured_block_size_is_not_changed_and_both_are_named(caplog: pytest.LogCaptureFixture) -> None:
    world = TierWorld()
    world.live(run_of([1, 2], 0, 32))
    assert "worker w:1: batch 0 has blocks of 32 tokens, not of 16" in caplog.messages
    assert (world.states[-1], world.depth(32)) == (StreamState.CATCHING_UP, 0)


def test_one_size_is_followed_once_it_is_certain() -> None:
    world = SizeWorld(None)
    world.live(run_of([1, 2], 0, 16))
    world.live(run_of([5, 6], 100, 32))
    assert (world.sizes, world.state) == ([16], StreamState.CATCHING_UP), "one resync, as for any doubt"
    world.subscription.replayed([b"", seq_frame(0), msgpack.encode([0.0, [run_of([1, 2], 0, 16)], 0])])
    world.subscription.replayed([b"", seq_frame(1), msgpack.encode([1.0, [run_of([5, 6], 100, 32)], 0])])
    world.subscription.replayed([b"", END, b""])
    assert (world.sizes, world.state, world.depth(32)) == ([16], StreamState.BLIND, 2)


# the owner of the events -------------------------------------------------------------------------


def test_a_stream_is_blind_until_its_owner_is_proven() -> None:
    world = TierWorld()
    stream = world.subscription.stream
    world.subscription.doubt_owner("why", is_fault=False)
    assert (world.states[-1], stream.reason) == (StreamState.UNPROVEN, "owner not proven yet: why")
    world.subscription.doubt_owner("why", is_fault=True)
    world.live(run_of([1, 2], 0, 16))
    assert (world.states[-1], stream.reason, stream.blind_reason) == (
        StreamState.BLIND,
        "owner not proven: why",
        None,
    )
    assert world.depth(32) == 2
    world.subscription.prove_owner()
    assert (world.states[-1], stream.reason, world.depth(32)) == (StreamState.EXACT, None, 2)


def test_events_of_a_disowned_stream_are_not_applied() -> None:
    world = TierWorld()
    world.live(run_of([1, 2], 0, 16))
    world.subscription.disown("they are another worker's")
    assert (world.states[-1], world.depth(32)) == (StreamState.BLIND, 0)
    world.live(run_of([1, 2], 0, 16))
    world.live({"type": "AllBlocksCleared"}, run_of([1, 2], 0, 16))
    assert (world.subscription.stream.reason, world.depth(32), world.asked) == (
        "owner not proven: they are another worker's",
        0,
        [0],
    )


def test_a_disowned_stream_drops_what_was_to_be_applied() -> None:
    world = TierWorld()
    names: list[object] = list(range(1, 3 * PORTION_BLOCKS))
    body = msgpack.encode([0.0, [run_of(names, 0, 16)] * 2, 0])
    world.subscription.live([b"", seq_frame(0), body])
    assert world.subscription.is_behind
    world.subscription.disown("why")
    while world.subscription.continue_work():
        pass
    assert (world.index.num_blocks(W), world.subscription.is_behind) == (0, False)


def test_events_are_read_while_they_come() -> None:
    """Neither before a replay is complete, nor while batches wait or the publisher is gone."""
    world = TierWorld()
    subscription = world.subscription
    assert subscription.is_read
    subscription.disconnected()
    assert not subscription.is_read
    subscription.connected()
    assert not subscription.is_read
    subscription.replayed([b"", END, b""])
    assert subscription.is_read
    subscription.cut("too much")
    assert not subscription.is_read


def test_a_run_of_unknown_place_is_found_by_the_tokens_of_a_prompt() -> None:
    world, prompt = TierWorld(heals=True), tokens_of(range(64))
    assert not world.subscription.has_orphan(prompt, 16)
    for _ in range(2):  # the resync after the first brings nothing
        world.live(run_of([7, 8], 32, 16, parent_block_hash=99))
        world.subscription.replayed([b"", END, b""])
    assert world.subscription.has_orphan(prompt, 16)
    assert not world.subscription.has_orphan(prompt[:32], 16)
    assert not TierWorld().subscription.has_orphan(prompt, 16)
