"""The stream's state machine as transcripts: inputs, and the commands and state that follow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.event_stream import (
    AWAITING_PROOF,
    NO_REPLAY,
    NOT_PROVEN,
    Apply,
    AskReplay,
    Command,
    Position,
    Reset,
    Stream,
    StreamState,
)
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, EventBatch


def batch(seq: int, *, run: int = 0) -> EventBatch:
    """Batch `seq` of engine process number `run`; later processes have later clocks."""
    return EventBatch(seq, 1000.0 * run + seq + 1, 0, (), digest=run * 1_000_003 + seq + 1)


def seqs(commands: list[Command]) -> list[object]:
    """Commands in short: a number for an applied batch, "reset", or ("ask", start)."""
    short: list[object] = []
    for command in commands:
        match command:
            case Apply(b):
                short.append(b.seq)
            case Reset():
                short.append("reset")
            case AskReplay(start):
                short.append(("ask", start))
    return short


def exact(num: int) -> Stream:
    """A stream that has applied batches 0..num-1."""
    stream = Stream(can_replay=True)
    stream.connected()
    for seq in range(num):
        stream.replayed(batch(seq))
    stream.replay_ended()
    assert stream.state is StreamState.EXACT
    return stream


def test_a_fresh_start_replays_from_zero_and_holds_live_batches() -> None:
    stream = Stream(can_replay=True)
    assert stream.state is StreamState.CATCHING_UP
    assert seqs(stream.connected()) == [("ask", 0)]
    assert seqs(stream.live(batch(2))) == []
    assert seqs(stream.replayed(batch(0))) == [0]
    assert seqs(stream.replayed(batch(1))) == [1]
    assert seqs(stream.replayed(batch(2))) == [2]
    assert seqs(stream.replay_ended()) == []
    assert stream.state is StreamState.EXACT
    assert stream.counts.num_repeats == 1


def test_an_engine_without_published_batches_is_exact() -> None:
    stream = Stream(can_replay=True)
    stream.connected()
    assert seqs(stream.replay_ended()) == []
    assert stream.state is StreamState.EXACT
    assert seqs(stream.live(batch(0))) == [0]


def test_a_buffer_that_does_not_reach_back_leaves_the_stream_blind() -> None:
    stream = Stream(can_replay=True)
    stream.connected()
    assert seqs(stream.replayed(batch(7))) == [7]
    assert seqs(stream.replayed(batch(8))) == [8]
    stream.replay_ended()
    assert stream.state is StreamState.BLIND
    assert seqs(stream.live(batch(9))) == [9]
    assert stream.state is StreamState.BLIND


def test_a_cleared_cache_ends_blindness() -> None:
    stream = Stream(can_replay=True)
    stream.connected()
    stream.replayed(batch(7))
    stream.replay_ended()
    stream.live(replace(batch(8), events=(BlocksCleared(),)))
    assert stream.state is StreamState.EXACT


def test_a_gap_is_filled_from_the_last_known_batch_on() -> None:
    stream = exact(3)
    assert seqs(stream.live(batch(5))) == [("ask", 2)]
    assert stream.state is StreamState.CATCHING_UP
    assert seqs(stream.live(batch(6))) == []
    assert seqs(stream.replayed(batch(2))) == []
    assert seqs(stream.replayed(batch(3))) == [3]
    assert seqs(stream.replayed(batch(4))) == [4]
    assert seqs(stream.replay_ended()) == [5, 6]
    assert stream.state is StreamState.EXACT
    assert stream.counts.num_gaps == 1


def test_a_gap_that_the_buffer_has_lost_resets_and_leaves_the_stream_blind() -> None:
    stream = exact(3)
    stream.live(batch(9))
    assert seqs(stream.replayed(batch(8))) == ["reset", 8]
    assert seqs(stream.replay_ended()) == [9]
    assert stream.state is StreamState.BLIND


def test_a_hole_inside_a_replay_is_asked_for_again_then_given_up() -> None:
    stream = exact(3)
    stream.live(batch(6))
    stream.replayed(batch(2))
    stream.replayed(batch(3))
    assert seqs(stream.replay_ended()) == [("ask", 3)]
    stream.replayed(batch(3))
    assert seqs(stream.replay_ended()) == ["reset", 6]
    assert stream.state is StreamState.BLIND


def test_a_batch_dropped_during_a_replay_is_asked_for_again() -> None:
    """An engine's ROUTER keeps 1,000 messages for a reader and drops further ones, from the middle too."""
    stream = Stream(can_replay=True)
    stream.connected()
    assert seqs(stream.replayed(batch(0))) == [0]
    assert seqs(stream.replayed(batch(2))) == []
    assert seqs(stream.replayed(batch(3))) == []
    assert seqs(stream.replay_ended()) == [("ask", 0)]
    stream = exact(3)
    stream.live(batch(9))
    stream.replayed(batch(2))
    stream.replayed(batch(3))
    assert seqs(stream.replayed(batch(6))) == []
    assert seqs(stream.replay_ended()) == [("ask", 3)]
    for seq in (3, 4, 5, 6, 7, 8):
        stream.replayed(batch(seq))
    assert seqs(stream.replay_ended()) == [9]
    assert stream.state is StreamState.EXACT


def test_a_replay_without_its_end_is_continued() -> None:
    stream = exact(3)
    stream.live(batch(6))
    assert stream.replay_stalled() == []
    stream.replayed(batch(2))
    assert stream.replay_stalled() == []
    stream.replayed(batch(3))
    assert seqs(stream.replay_stalled()) == [("ask", 3)]


def test_batches_held_before_a_disconnection_are_dropped_after_it() -> None:
    stream = exact(3)
    stream.live(batch(5))
    stream.disconnected()
    stream.connected()
    assert seqs(stream.replayed(batch(2, run=1))) == ["reset", ("ask", 0)]
    for seq in range(5):
        stream.replayed(batch(seq, run=1))
    assert seqs(stream.replay_ended()) == []
    assert (stream.state, stream.next_seq) == (StreamState.EXACT, 5)


def test_a_repeated_or_late_batch_is_dropped() -> None:
    stream = exact(5)
    assert seqs(stream.live(batch(4))) == []
    assert seqs(stream.live(batch(1))) == []
    assert stream.counts.num_repeats == 2
    assert stream.state is StreamState.EXACT


def test_a_lower_number_with_a_later_clock_is_a_restarted_engine() -> None:
    stream = exact(5)
    epoch = stream.epoch
    assert seqs(stream.live(batch(1, run=1))) == ["reset", ("ask", 0)]
    assert stream.epoch == epoch + 1
    stream.replayed(batch(0, run=1))
    stream.replayed(batch(1, run=1))
    assert seqs(stream.replay_ended()) == []
    assert (stream.state, stream.next_seq) == (StreamState.EXACT, 2)


def test_after_a_reconnection_the_last_batch_proves_the_same_engine() -> None:
    stream = exact(3)
    stream.disconnected()
    assert stream.state is StreamState.CATCHING_UP
    assert seqs(stream.live(batch(4))) == []
    assert seqs(stream.connected()) == [("ask", 2)]
    assert seqs(stream.replayed(batch(2))) == []
    assert seqs(stream.replayed(batch(3))) == [3]
    assert seqs(stream.replay_ended()) == [4]
    assert stream.state is StreamState.EXACT


def test_after_a_reconnection_another_batch_under_the_known_number_is_another_engine() -> None:
    stream = exact(3)
    stream.disconnected()
    stream.connected()
    assert seqs(stream.replayed(batch(2, run=1))) == ["reset", ("ask", 0)]
    for seq in range(4):
        stream.replayed(batch(seq, run=1))
    stream.replay_ended()
    assert (stream.state, stream.next_seq) == (StreamState.EXACT, 4)


def test_after_a_reconnection_a_lower_last_number_is_another_engine() -> None:
    stream = exact(3)
    stream.disconnected()
    stream.connected()
    assert seqs(stream.replay_ended()) == ["reset", ("ask", 0)]
    stream.replay_ended()
    assert (stream.state, stream.next_seq) == (StreamState.EXACT, 0)


def test_a_failed_replay_resets_and_leaves_the_stream_blind_until_resync() -> None:
    stream = exact(3)
    stream.live(batch(5))
    assert seqs(stream.replay_failed()) == ["reset", 5]
    assert stream.state is StreamState.BLIND
    assert seqs(stream.resync()) == ["reset", ("ask", 0)]
    for seq in range(6):
        stream.replayed(batch(seq))
    stream.replay_ended()
    assert stream.state is StreamState.EXACT


def test_more_held_batches_than_the_limit_end_the_replay() -> None:
    stream = Stream(can_replay=True, max_held=3)
    stream.connected()
    for seq in range(10, 13):
        assert stream.live(batch(seq)) == []
    assert seqs(stream.live(batch(13))) == [10, 11, 12, 13]
    assert stream.state is StreamState.BLIND
    assert seqs(stream.replayed(batch(0))) == []


def test_more_held_blocks_than_the_limit_end_the_replay() -> None:
    stream = Stream(can_replay=True, max_held_blocks=2_500)
    stream.connected()
    large = [BlocksRemoved(range(1_000))]
    for seq in (10, 11):
        assert stream.live(EventBatch(seq, 1.0, None, large, seq)) == []
    assert seqs(stream.live(EventBatch(12, 1.0, None, large, 12))) == [10, 11, 12]
    assert stream.state is StreamState.BLIND
    stream.resync()
    for seq in (20, 21):  # batches held before no longer count
        assert stream.live(EventBatch(seq, 1.0, None, large, seq)) == []


@pytest.mark.parametrize("can_replay", [True, False])
def test_a_cut_resets_and_stays_blind_under_its_reason(can_replay: bool) -> None:
    stream = exact(3) if can_replay else Stream(can_replay=False)
    assert seqs(stream.cut("too much")) == ["reset"]
    assert (stream.state, stream.blind_reason) == (StreamState.BLIND, "too much")
    assert (stream.counts.num_cuts, stream.next_seq) == (1, 0)


def test_after_a_cut_a_replay_makes_it_exact_again() -> None:
    stream = exact(3)
    stream.cut("too much")
    assert seqs(stream.connected()) == [("ask", 0)]
    assert seqs(c for seq in range(3) for c in stream.replayed(batch(seq))) == [0, 1, 2]
    stream.replay_ended()
    assert stream.state is StreamState.EXACT


def test_after_a_cut_without_replays_the_reason_stays() -> None:
    stream = Stream(can_replay=False)
    stream.live(batch(0))
    stream.cut("too much")
    assert seqs(stream.live(batch(5))) == [5]
    assert (stream.state, stream.blind_reason) == (StreamState.BLIND, "too much")
    assert seqs(stream.live(batch(9))) == ["reset", 9]
    assert stream.blind_reason == "a gap without a replay endpoint"


def test_a_late_replay_answer_cannot_resurrect() -> None:
    stream = exact(3)
    assert seqs(stream.replayed(batch(0))) == []
    assert seqs(stream.replayed(batch(2))) == []


def test_without_a_replay_endpoint_a_start_in_the_middle_is_blind() -> None:
    stream = Stream(can_replay=False)
    assert stream.state is StreamState.BLIND
    assert stream.connected() == []
    assert seqs(stream.live(batch(4))) == [4]
    assert stream.state is StreamState.BLIND
    assert seqs(stream.live(batch(6))) == ["reset", 6]


def test_without_a_replay_endpoint_the_engines_first_batch_is_a_known_start() -> None:
    stream = Stream(can_replay=False)
    assert seqs(stream.live(batch(0))) == [0]
    assert stream.state is StreamState.EXACT
    assert seqs(stream.live(batch(0, run=1))) == ["reset", 0]
    assert stream.state is StreamState.EXACT


def test_without_a_replay_endpoint_a_reconnection_proves_nothing() -> None:
    stream = Stream(can_replay=False)
    stream.live(batch(0))
    assert seqs(stream.disconnected()) == ["reset"]
    assert seqs(stream.live(batch(1))) == [1]
    assert stream.state is StreamState.BLIND


def test_an_undecodable_batch_resets_and_blinds() -> None:
    stream = exact(3)
    assert seqs(stream.undecodable(3, is_replay=False)) == ["reset"]
    assert stream.state is StreamState.BLIND
    assert seqs(stream.live(batch(4))) == [4]
    assert stream.counts.num_undecodable == 1


def test_an_undecodable_batch_during_a_replay_waits_for_its_order() -> None:
    stream = exact(3)
    stream.live(batch(5))
    assert stream.undecodable(6, is_replay=False) == []
    assert stream.state is StreamState.CATCHING_UP


def test_doubt_blinds_an_exact_stream() -> None:
    stream = exact(3)
    stream.doubt("unknown parent")
    assert stream.state is StreamState.BLIND
    assert stream.blind_reason == "unknown parent"


@pytest.mark.parametrize("can_replay", [True, False])
@given(data=st.data())
def test_exact_means_every_batch_once_and_in_order(can_replay: bool, data: st.DataObject) -> None:
    """Any mix of lost, repeated, reordered batches and restarts, with a truthful replay."""
    stream = Stream(can_replay=can_replay)
    applied: list[tuple[int, int]] = []
    run, published = 0, 0

    def carry_out(commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Apply(b):
                    applied.append((b.digest // 1_000_003, b.seq))
                case Reset():
                    applied.clear()
                case AskReplay(start):
                    for seq in range(start, published):
                        replayed = stream.replayed(batch(seq, run=run))
                        carry_out(replayed)
                        if any(isinstance(c, AskReplay) for c in replayed):
                            return
                    carry_out(stream.replay_ended())

    carry_out(stream.connected())
    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["publish", "lose", "repeat", "restart"]))
        if action == "restart":
            run, published = run + 1, 0
            carry_out(stream.disconnected())
            carry_out(stream.connected())
            continue
        if action == "repeat" and published:
            carry_out(stream.live(batch(data.draw(st.integers(0, published - 1)), run=run)))
            continue
        published += 1
        if action == "publish":
            carry_out(stream.live(batch(published - 1, run=run)))
    published += 1
    carry_out(stream.live(batch(published - 1, run=run)))
    if stream.state is StreamState.EXACT:
        assert applied == [(run, seq) for seq in range(published)]
    if can_replay:
        assert stream.state is StreamState.EXACT


# taken over ------------------------------------------------------------------------------------


def adopted(num: int, *, can_replay: bool = True, blind_reason: str | None = None) -> Stream:
    """Stream that resumes at the position of another reader."""
    stream = Stream(can_replay=can_replay)
    stream.adopt(exact(num).position, blind_reason)
    return stream


def test_a_position_taken_over_is_used_once_it_is_proved() -> None:
    stream = adopted(5)
    assert stream.state is StreamState.CATCHING_UP
    assert seqs(stream.connected()) == [("ask", 4)]
    assert seqs(stream.live(batch(6))) == []
    assert seqs(stream.replayed(batch(4))) == []
    assert seqs(stream.replayed(batch(5))) == [5]
    assert seqs(stream.replay_ended()) == [6]
    assert stream.state is StreamState.EXACT


def test_a_position_of_another_engine_is_discarded() -> None:
    stream = adopted(5)
    stream.connected()
    assert seqs(stream.replayed(batch(4, run=1))) == ["reset", ("ask", 0)]


def test_a_position_that_the_buffer_has_lost_is_discarded() -> None:
    stream = adopted(5)
    stream.connected()
    assert seqs(stream.replayed(batch(9))) == ["reset", 9]
    stream.replay_ended()
    assert stream.state is StreamState.BLIND


def test_the_position_before_the_first_batch_needs_no_proof() -> None:
    stream = Stream(can_replay=True)
    stream.adopt(Position())
    assert seqs(stream.connected()) == [("ask", 0)]
    assert (seqs(stream.replayed(batch(0))), seqs(stream.replay_ended())) == ([0], [])
    assert stream.state is StreamState.EXACT


def test_a_blind_stream_taken_over_stays_blind() -> None:
    stream = adopted(5, blind_reason="a gap")
    stream.connected()
    stream.replayed(batch(4))
    stream.replay_ended()
    assert (stream.state, stream.blind_reason) == (StreamState.BLIND, "a gap")


def test_without_replays_a_position_cannot_be_proved() -> None:
    stream = adopted(0, can_replay=False)
    assert (stream.state, stream.blind_reason) == (StreamState.BLIND, NO_REPLAY)


def test_a_doubt_about_the_owner_is_not_taken_over_from_another_reader() -> None:
    stream = Stream(can_replay=True)
    for reason in (f"{NOT_PROVEN}why", None):
        stream.adopt(Position(3, 5, 1.0), reason)
        assert (stream.blind_reason, stream.reason) == (None, None)
    stream.adopt(Position(3, 5, 1.0), "a gap")
    assert stream.reason == "a gap"
    stream.owner_doubt = "why"
    assert stream.reason == f"{NOT_PROVEN}why"


def test_waiting_for_a_proof_is_no_fault() -> None:
    """A fault that is seen is reported all the same."""
    for can_replay in (False, True):
        stream = Stream(can_replay=can_replay)
        stream.owner_doubt, stream.is_awaiting_proof = "why", True
        if can_replay:
            assert stream.state is StreamState.CATCHING_UP
            stream.connected()
            stream.replay_ended()
        assert (stream.state, stream.reason) == (StreamState.UNPROVEN, f"{AWAITING_PROOF}why")
        stream.doubt("a gap")
        expected = (
            (StreamState.BLIND, "a gap") if can_replay else (StreamState.UNPROVEN, f"{AWAITING_PROOF}why")
        )
        assert (stream.state, stream.reason) == expected
        stream.blind_reason = "a gap"
        assert (stream.state, stream.reason) == (StreamState.BLIND, "a gap")
        stream.is_awaiting_proof = False
        assert (stream.state, stream.reason) == (StreamState.BLIND, f"{NOT_PROVEN}why")
    stream.adopt(Position(3, 5, 1.0), f"{AWAITING_PROOF}why")
    assert stream.blind_reason is None
