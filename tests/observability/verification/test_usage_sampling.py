from dataclasses import replace

import pytest

from gateway.core.engine import StreamUsage
from gateway.core.worker import WorkerId
from gateway.observability.verification.usage_sampling import MAX_DOUBTED, NEW_STREAMS, SAMPLE, Asking
from tests.support.fakes import worker

USAGE = {"vllm": StreamUsage(), "openai": StreamUsage(can_be_asked=False)}


def asking(mode: str = "auto", doubted: str = "") -> Asking:
    return Asking(mode, USAGE, lambda worker: worker == WorkerId(doubted))


def test_a_new_worker_is_asked_always_and_then_for_a_sample() -> None:
    asks, w = asking(), worker()
    told = [asks.ask(w) is not None for _ in range(NEW_STREAMS + 10 * SAMPLE)]
    assert all(told[:NEW_STREAMS])
    assert sum(told[NEW_STREAMS:]) == 10


def test_workers_are_counted_apart_and_a_restarted_one_is_new() -> None:
    asks, w = asking(), worker()
    for _ in range(NEW_STREAMS):
        asks.ask(w)
    assert asks.ask(w) is None
    assert asks.ask(worker("w:2")) is not None
    assert asks.ask(worker()) is not None  # joined anew under the same address


def test_one_that_was_wrong_lately_is_asked_always() -> None:
    asks, w = asking(doubted="w:1"), worker()
    assert all(asks.ask(w) for _ in range(NEW_STREAMS + SAMPLE))


def test_a_doubt_that_does_not_end_is_no_reason_to_ask_for_ever_but_the_next_one_is() -> None:
    doubted = {WorkerId("w:1")}
    asks, w = Asking("auto", USAGE, lambda worker: worker in doubted), worker()
    assert all(asks.ask(w) for _ in range(MAX_DOUBTED))
    assert sum(asks.ask(w) is not None for _ in range(10 * SAMPLE)) == 10
    doubted.clear()
    assert sum(asks.ask(w) is not None for _ in range(SAMPLE)) == 1
    doubted.add(w.id)
    assert all(asks.ask(w) for _ in range(SAMPLE))


@pytest.mark.parametrize(
    ("mode", "engine", "is_asked"),
    [
        ("auto", "vllm", True),
        ("auto", "openai", False),  # an unknown server may refuse the field
        ("auto", "of another make", False),
        ("all", "openai", True),
        ("off", "vllm", False),
    ],
)
def test_who_is_asked(mode: str, engine: str, is_asked: bool) -> None:
    assert (asking(mode).ask(replace(worker(), engine=engine)) is not None) is is_asked


@pytest.mark.parametrize("mode", ["off", "auto", "all"])
def test_where_tokens_are_counted_all_are_asked_who_understand_it(mode: str) -> None:
    asks, w = asking(mode), worker()
    assert all(asks.ask(w, True) for _ in range(NEW_STREAMS + 2 * SAMPLE))
    if mode != "all":
        assert asks.ask(replace(w, engine="openai"), True) is None
