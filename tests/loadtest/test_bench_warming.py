"""The benchmark of warming: its traffic, and the requests that it compares."""

from itertools import islice

import pytest

from loadtest.bench_warming import (
    FIRST,
    NUM_PREFIXES,
    JoinRun,
    Sent,
    figures,
    line,
    measured,
    percentile,
    prompts,
    tokens_of,
)


def sent(at_s: float, worker: str, ttft_s: float = 0.1, cached: int = 0) -> Sent:
    return Sent(at_s, worker, ttft_s, cached, 100)


def test_prompts_share_prefixes_and_have_tails_of_their_own() -> None:
    made = list(islice(prompts(1, 320), 300))
    assert len({tuple(ids[:320]) for ids in made}) == NUM_PREFIXES
    assert len({tuple(ids) for ids in made}) == 300
    assert made == list(islice(prompts(1, 320), 300))


def test_compared_are_the_first_requests_of_the_joined_worker_and_the_others_until_then() -> None:
    new = [sent(10.0 + number, "new", 0.2, 50) for number in range(FIRST + 5)]
    old = [sent(at_s, "old") for at_s in (5.0, 11.0, 12.0, 10.0 + FIRST + 1)]
    run = JoinRun([*reversed(new), *old], 9.0, "new", 320.0)
    assert run.first == new[:FIRST]
    assert run.others == old[1:3]
    found = measured(run)
    assert found["joined_ttft_p90"] == ("ms", 200.0)
    assert found["others_ttft_p90"] == ("ms", 100.0)
    assert found["joined_hit_rate"] == ("share", 0.5)
    assert "warmed_tokens 320 tokens" in line("warmed", run)
    assert [each.name for each in figures({"cold": [run]})][0] == "cold.joined_requests"


def test_a_worker_without_a_request_has_no_figures() -> None:
    found = measured(JoinRun([sent(1.0, "old")], 0.0, "new", 0.0))
    assert (found["joined_requests"][1], found["joined_ttft_p90"][1]) == (0.0, 0.0)


@pytest.mark.parametrize(("values", "p90"), [([], 0.0), ([1.0], 1.0), ([float(n) for n in range(10)], 9.0)])
def test_percentiles_are_by_rank(values: list[float], p90: float) -> None:
    assert percentile(values, 90) == p90


def test_tokens_are_read_of_the_usage() -> None:
    assert tokens_of({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}) == (4, 9)
    assert tokens_of({"prompt_tokens": 9, "prompt_tokens_details": None}) == (0, 9)
    assert tokens_of({}) == (0, 0)
