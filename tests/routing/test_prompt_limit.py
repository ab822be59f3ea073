"""The longest prompt of a fleet: known of all of its workers, or not at all."""

import pytest

from gateway.core.fleet import Eligible, Fleet
from gateway.core.worker import Served, Worker, WorkerId
from gateway.routing.prompt_limit import longest_prompt


def eligible(*workers: tuple[str, int | None]) -> list[Eligible]:
    fleet = Fleet()
    for number, (engine, most) in enumerate(workers):
        served = Served("m", "m", max_model_len=most)
        fleet.add(Worker(WorkerId(f"w:{number}"), f"http://w:{number}", (served,), engine=engine))
    return list(fleet.eligible("m"))


@pytest.mark.parametrize(
    ("workers", "longest"),
    [
        ([("vllm", 100)], 100),
        ([("vllm", 100), ("vllm", 300)], 300),
        ([("vllm", 100), ("vllm", None)], 0),
        ([("vllm", 100), ("sglang", 100)], 0),
    ],
)
def test_a_prompt_that_some_worker_may_take_is_not_refused(
    workers: list[tuple[str, int | None]], longest: int
) -> None:
    assert longest_prompt(eligible(*workers)) == longest


def test_nothing_is_refused_where_there_is_no_worker() -> None:
    assert longest_prompt([]) == 0
