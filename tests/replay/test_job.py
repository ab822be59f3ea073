from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import hash_blocks, root_hash
from gateway.replay.job import HashedPrompt, ReplayJob

BIG = st.integers(0, 2**64 - 1)


@given(st.lists(BIG, min_size=1, max_size=6, unique=True), st.data(), st.sampled_from([2, 4, 16]))
def test_generated_tokens_are_equal_where_hashes_are(
    hashes: list[int], data: st.DataObject, size: int
) -> None:
    """Hashes are of blocks of the trace's size, and of parts of them."""
    num_shared = data.draw(st.integers(0, len(hashes) - 1))
    other = [*hashes[:num_shared], *[h ^ 1 for h in hashes[num_shared:]]]
    first, second = (HashedPrompt(array("Q", each), 16, 16 * len(each)).tokens() for each in (hashes, other))
    assert len(first) == 16 * len(hashes)
    root = root_hash("m")
    pairs = zip(hash_blocks(first, size, root), hash_blocks(second, size, root), strict=True)
    assert [a == b for a, b in pairs].count(True) == num_shared * 16 // size


def test_blocks_of_one_token_have_one_token_each() -> None:
    first, second = (HashedPrompt(array("Q", each), 1, 3).tokens() for each in ([9, 2**40 + 1, 8], [9, 7, 8]))
    assert first.tolist() == [9, 1, 8] and second.tolist() == [9, 7, 8]


def test_the_last_block_may_be_partial() -> None:
    prompt = HashedPrompt(array("Q", [1, 2]), 16, 19)
    assert len(prompt) == len(prompt.tokens()) == 19


def test_results_of_a_job() -> None:
    job = ReplayJob(1.0, array("I", range(10)), 5, first_s=1.5, last_s=2.5)
    assert (job.num_tokens, job.ttft_s, job.tpot_s, job.e2e_s) == (10, 0.5, 0.25, 1.5)
    assert job.tokens() is job.prompt
    assert job.meets(0.5, 0.25) and not job.meets(0.4, 0.25) and not job.meets(0.5, 0.2)
    assert not ReplayJob(1.0, array("I", [1]), 5).meets(9, 9)
