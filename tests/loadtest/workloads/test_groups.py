from itertools import pairwise

from gateway.core.blocks import hash_blocks, root_hash
from loadtest.workloads.groups import ANSWER, BLOCK, PREFIX, QUESTION, groups, prompt_of


def test_a_group_shares_its_prefix_and_nothing_else() -> None:
    first, same, second = (
        hash_blocks(prompt.tokens(), BLOCK, root_hash("m"))
        for prompt in (prompt_of(3, 0), prompt_of(3, 1), prompt_of(4, 0))
    )
    num_shared = PREFIX // BLOCK
    assert first[:num_shared] == same[:num_shared]
    assert not set(first[num_shared:]) & set(same[num_shared:])
    assert not set(first) & set(second)


def test_requests_arrive_at_the_given_rates() -> None:
    jobs = list(groups((10, 40), 50.0))
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    first = [job for job in jobs if job.at < 50]
    assert 400 < len(first) < 600 and 1800 < len(jobs) - len(first) < 2200
    assert all(later.at > earlier.at for earlier, later in pairwise(jobs))
    assert {(job.num_tokens, job.num_output) for job in jobs} == {(PREFIX + QUESTION, ANSWER)}
    assert {job.turn for job in jobs} == {1, 2}


def test_a_seed_determines_the_workload() -> None:
    assert [job.at for job in groups((5,), 10.0, 1)] == [job.at for job in groups((5,), 10.0, 1)]
    assert [job.at for job in groups((5,), 10.0, 1)] != [job.at for job in groups((5,), 10.0, 2)]
