import pytest

from gateway.core.blocks import hash_blocks, root_hash
from gateway.replay.profile import H100_8B
from loadtest.workloads.short_answers import (
    ANSWER,
    BLOCK,
    INSTRUCTION_BLOCKS,
    NUM_INSTRUCTIONS,
    QUESTION_BLOCKS,
    rate_of,
    short_answers,
)


def test_questions_share_instructions_and_nothing_else() -> None:
    chains = [hash_blocks(job.tokens(), BLOCK, root_hash("m")) for job in short_answers(20.0, 10.0)]
    instructions = {chain[INSTRUCTION_BLOCKS - 1] for chain in chains}
    own = [chain[INSTRUCTION_BLOCKS:] for chain in chains]
    assert len(instructions) < min(len(chains), NUM_INSTRUCTIONS + 1)
    assert len({blocks[0] for blocks in own}) == len(chains)
    assert {len(blocks) for blocks in own} == set(range(QUESTION_BLOCKS[0], QUESTION_BLOCKS[1] + 1))


def test_answers_are_short_and_requests_arrive_at_the_given_rate() -> None:
    jobs = list(short_answers(50.0, 40.0))
    assert 1800 < len(jobs) < 2200 and [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert (min(job.num_output for job in jobs), max(job.num_output for job in jobs)) == ANSWER
    assert {job.turn for job in jobs} == {1, 2}


def test_a_rate_keeps_a_share_of_the_seats_busy() -> None:
    """A seat is taken for an answer's steps and for the questions that are computed meanwhile."""
    rate, seats = rate_of(H100_8B, 1.0), H100_8B.max_num_seqs
    question_s = 4.5 * BLOCK / H100_8B.prefill_tokens_per_s
    taken_s = 70 * (H100_8B.step_s + (seats - 1) * H100_8B.seq_s) + seats * question_s
    assert rate * taken_s == pytest.approx(seats)
    assert rate_of(H100_8B, 1.3) == pytest.approx(1.3 * rate)


def test_a_seed_determines_the_workload() -> None:
    one, same, other = ([job.at for job in short_answers(5.0, 9.0, seed)] for seed in (1, 1, 2))
    assert one == same != other
