"""The table at the top of replication/follower.py, row by row, and the agents of a worker."""

from dataclasses import replace

import pytest

from gateway.core.blocks import BlockHash, root_hash
from gateway.core.event_stream import Position, Reset, StreamCounts, StreamState
from gateway.core.kv_events import BlocksCleared, KvEvent
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.replication.follower import Cursor, Follower, LogError, refusal
from gateway.replication.messages import AgentHello, AgentStatus, BlockSample, LogBatch, SnapshotPart, Update

EXACT, CATCHING_UP, BLIND = StreamState.EXACT, StreamState.CATCHING_UP, StreamState.BLIND
CLEARED: KvEvent = BlocksCleared()
HERE = Position(40, 7, 1.0)
HELLO = AgentHello("http://127.0.0.1:8000", 0, 16, root_hash("root"), AgentStatus(EXACT), 123.25)
WORKER = Worker(WorkerId("w:8000"), "http://w:8000", (ServedModel("m", "root"),), block_size=16)


def part(number: int = 0, *, is_last: bool = True, epoch: int = 5, next_seq: int = 3) -> SnapshotPart:
    return SnapshotPart(epoch, next_seq, number, is_last, [CLEARED], HERE if is_last else None)


def batch(seq: int, epoch: int = 5, position: Position | None = HERE) -> LogBatch:
    return LogBatch(epoch, seq, [CLEARED], position)


def follower(*updates: Update) -> Follower:
    made = Follower(StreamCounts())
    for update in updates:
        made.advance(update)
    return made


EXACT_AT_3 = (HELLO, part(), AgentStatus(EXACT))


def test_a_new_follower_asks_for_everything() -> None:
    assert repr(follower()) == "Follower(catching_up, Cursor(epoch=0, next_seq=0))"
    assert follower().handover is None


def test_a_snapshot_resets_first_and_its_parts_add_up() -> None:
    made = follower(HELLO)
    assert made.advance(part(is_last=False)) == [Reset("a snapshot follows"), CLEARED]
    assert made.advance(part(1, is_last=False)) == [CLEARED]
    assert (made.advance(part(2)), made.state) == ([CLEARED], CATCHING_UP)
    assert made.advance(AgentStatus(EXACT)) == []
    assert (made.state, made.cursor, made.handover) == (EXACT, Cursor(5, 3), HERE)


def test_batches_follow_the_snapshot() -> None:
    made = follower(*EXACT_AT_3)
    assert made.advance(batch(3)) == [CLEARED]
    assert (made.advance(batch(3)), made.counts.num_repeats) == ([], 1)
    assert made.advance(batch(4, position=None)) == [CLEARED]
    assert (made.cursor, made.state, made.handover) == (
        Cursor(5, 5),
        EXACT,
        None,
    )  # in the middle of a snapshot
    made.advance(batch(5))
    assert (made.handover, made.counts.num_batches) == (HERE, 3)


@pytest.mark.parametrize(
    ("before", "update", "words"),
    [
        (EXACT_AT_3, batch(5), "batch 5 where batch 3 was due"),
        (EXACT_AT_3, batch(3, epoch=6), "batch 3 of epoch 6 without its snapshot"),
        ((HELLO,), batch(0), "batch 0 of epoch 5 without its snapshot"),
        ((HELLO, part(is_last=False)), batch(3), "batch 3 of epoch 5 without its snapshot"),
        ((HELLO, part(is_last=False)), part(2), "part 2 of a snapshot where part 1 was due"),
        ((HELLO, part(is_last=False)), part(1, epoch=6), "part 1 of a snapshot where part 1 was due"),
        (EXACT_AT_3, BlockSample(5, 4, 0, []), "a sample behind batch 4 of epoch 5"),
        (EXACT_AT_3, BlockSample(6, 3, 0, []), "a sample behind batch 3 of epoch 6"),
        ((HELLO, part(is_last=False)), BlockSample(5, 3, 0, []), "a sample behind batch 3"),
        (EXACT_AT_3, part(1), "part 1 of a snapshot where part 0 was due"),
    ],
)
def test_an_update_out_of_order_is_an_error(before: tuple[Update, ...], update: Update, words: str) -> None:
    with pytest.raises(LogError, match=words):
        follower(*before).advance(update)


def test_a_sample_changes_nothing() -> None:
    made = follower(*EXACT_AT_3)
    assert (made.advance(BlockSample(5, 3, 0, [])), made.cursor, made.state) == ([], Cursor(5, 3), EXACT)


def test_after_a_gap_the_follower_asks_from_there() -> None:
    made = follower(*EXACT_AT_3)
    with pytest.raises(LogError):
        made.advance(batch(5))
    made.lost()
    assert (made.cursor, made.state, made.counts.num_gaps) == (Cursor(5, 3), CATCHING_UP, 1)


@pytest.mark.parametrize("last", [None, part(2), part(7)])
def test_a_truncated_snapshot_is_asked_for_again(last: SnapshotPart | None) -> None:
    made = follower(*EXACT_AT_3, part(is_last=False))
    if last:
        with pytest.raises(LogError):
            made.advance(last)
    made.lost()
    assert (made.cursor, made.handover) == (Cursor(), None)


def test_the_position_of_a_lost_agent_can_be_handed_over() -> None:
    made = follower(*EXACT_AT_3, AgentStatus(CATCHING_UP))
    made.lost()
    assert (made.handover, made.state, made.blind_reason) == (HERE, CATCHING_UP, None)
    made.advance(HELLO)
    assert (made.handover, made.state) == (HERE, CATCHING_UP)
    made.forget()
    assert (made.handover, made.cursor) == (None, Cursor())


def test_an_incomplete_position_is_handed_over_with_its_reason() -> None:
    made = follower(HELLO, part(), AgentStatus(BLIND, "a gap"))
    made.lost()
    assert (made.handover, made.blind_reason) == (HERE, "a gap")
    made.advance(AgentStatus(StreamState.UNPROVEN, "not yet"))
    assert (made.state, made.blind_reason) == (StreamState.UNPROVEN, "not yet")
    made.advance(AgentStatus(EXACT))
    assert made.blind_reason is None


@pytest.mark.parametrize(("position", "is_proof"), [(Position(), True), (Position(9, 0, 1.0), False)])
def test_a_position_without_a_proof_is_not_handed_over(position: Position, is_proof: bool) -> None:
    made = follower(*EXACT_AT_3, batch(3, position=position))
    assert (made.handover == position) is is_proof


@pytest.mark.parametrize(
    ("hello", "is_named", "words"),
    [
        (HELLO, False, None),
        (replace(HELLO, status=AgentStatus(BLIND)), False, None),
        (replace(HELLO, start_time_s=0.0), False, None),
        (replace(HELLO, version=2), False, "protocol version 2 instead of 1"),
        (replace(HELLO, root=BlockHash(1)), False, "another model than root"),
        (replace(HELLO, dp_rank=1), False, "rank 1 with blocks of 16 tokens instead of rank 0"),
        (replace(HELLO, block_size=32), False, "blocks of 32 tokens instead of rank 0 with blocks of 16"),
        (replace(HELLO, start_time_s=124.0), True, "another engine process, at http://127.0.0.1:8000"),
        (replace(HELLO, engine_url="http://127.0.0.1:8001"), False, "on another port"),
        (replace(HELLO, engine_url="http://127.0.0.1:8001"), True, None),
        (replace(HELLO, status=AgentStatus(CATCHING_UP)), False, "it is catching up"),
    ],
)
def test_the_agents_of_a_worker_are_recognized(hello: AgentHello, is_named: bool, words: str | None) -> None:
    why = refusal(hello, WORKER, 123.25, is_named=is_named)
    assert (why is None) is (words is None) and (words or "") in (why or "")


def test_an_engine_without_a_start_time_is_recognized_by_its_port() -> None:
    assert refusal(HELLO, WORKER, None, is_named=False) is None


@pytest.mark.parametrize("url", ["", "http://[", "http://a:99999", "x" * 100_000])
def test_an_agent_without_a_url_is_not_followed(url: str) -> None:
    for is_named in (False, True):
        why = refusal(replace(HELLO, engine_url=url), WORKER, None, is_named=is_named)
        assert why and why.startswith("the URL of its engine is invalid: ") and len(why) < 300


def test_a_cut_resets_and_is_blind_under_its_reason() -> None:
    made = follower(*EXACT_AT_3)
    made.cut("too much")
    assert (made.state, made.blind_reason, made.cursor, made.handover) == (BLIND, "too much", Cursor(), None)
    assert made.counts.num_cuts == 1
    made.advance(HELLO)
    assert made.state is CATCHING_UP
