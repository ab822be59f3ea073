"""The longest prompt of a fleet: known for all of its workers, or unlimited."""

import pytest

from gateway.core.fleet import EligibleWorker, Fleet
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.routing.prompt_limit import longest_prompt


def eligible(*workers: tuple[str, int | None]) -> list[EligibleWorker]:
    fleet = Fleet()
    for number, (engine, most) in enumerate(workers):
        served = ServedModel("m", "m", max_model_len=most)
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
def test_a_prompt_that_some_worker_accepts_is_not_rejected(
    workers: list[tuple[str, int | None]], longest: int
) -> None:
    assert longest_prompt(eligible(*workers)) == longest


def test_without_workers_no_prompt_is_rejected() -> None:
    assert longest_prompt([]) == 0
