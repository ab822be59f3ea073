from dataclasses import replace

import pytest

from gateway.core.engine import StreamUsage
from gateway.core.worker import WorkerId
from gateway.observability.verification.usage_sampling import MAX_DOUBTED, NEW_STREAMS, SAMPLE, UsageSampling
from tests.support.fakes import worker

USAGE = {"vllm": StreamUsage(), "openai": StreamUsage(can_be_asked=False)}


def sampling(mode: str = "auto", doubted: str = "") -> UsageSampling:
    return UsageSampling(mode, USAGE, lambda worker: worker == WorkerId(doubted))


def test_a_new_worker_is_sampled_always_and_then_at_a_rate() -> None:
    usage_sampling, w = sampling(), worker()
    sampled = [usage_sampling.ask(w) is not None for _ in range(NEW_STREAMS + 10 * SAMPLE)]
    assert all(sampled[:NEW_STREAMS])
    assert sum(sampled[NEW_STREAMS:]) == 10


def test_each_worker_has_its_count_and_a_restart_resets_it() -> None:
    usage_sampling, w = sampling(), worker()
    for _ in range(NEW_STREAMS):
        usage_sampling.ask(w)
    assert usage_sampling.ask(w) is None
    assert usage_sampling.ask(worker("w:2")) is not None
    assert usage_sampling.ask(worker()) is not None  # joined again at the same address


def test_a_worker_that_was_wrong_lately_is_sampled_always() -> None:
    usage_sampling, w = sampling(doubted="w:1"), worker()
    assert all(usage_sampling.ask(w) for _ in range(NEW_STREAMS + SAMPLE))


def test_a_lasting_doubt_returns_to_the_rate_and_a_new_doubt_samples_always() -> None:
    doubted = {WorkerId("w:1")}
    usage_sampling, w = UsageSampling("auto", USAGE, lambda worker: worker in doubted), worker()
    assert all(usage_sampling.ask(w) for _ in range(MAX_DOUBTED))
    assert sum(usage_sampling.ask(w) is not None for _ in range(10 * SAMPLE)) == 10
    doubted.clear()
    assert sum(usage_sampling.ask(w) is not None for _ in range(SAMPLE)) == 1
    doubted.add(w.id)
    assert all(usage_sampling.ask(w) for _ in range(SAMPLE))


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
def test_streams_are_sampled_by_mode_and_engine(mode: str, engine: str, is_asked: bool) -> None:
    assert (sampling(mode).ask(replace(worker(), engine=engine)) is not None) is is_asked


@pytest.mark.parametrize("mode", ["off", "auto", "all"])
def test_counted_tenants_streams_are_all_sampled_if_the_engine_supports_it(mode: str) -> None:
    usage_sampling, w = sampling(mode), worker()
    assert all(usage_sampling.ask(w, True) for _ in range(NEW_STREAMS + 2 * SAMPLE))
    if mode != "all":
        assert usage_sampling.ask(replace(w, engine="openai"), True) is None
