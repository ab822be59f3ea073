"""Workers, names and event sources, made from an endpoint's facts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.errors import ConfigError
from gateway.core.worker import LOAD_FIGURES, ReportedLoad, ServedModel
from gateway.discovery.probed import (
    Facts,
    Mode,
    endpoint_url,
    event_source,
    has_changed,
    known_ranks,
    reported,
    served_models,
    worker_urls,
    workers_of,
)

URL = "http://10.0.0.1:8000"
MODELS = (ModelInfo("m", "root", None, 4096),)


def facts(url: str = URL, **fields: object) -> Facts:
    return Facts(url, "vllm", MODELS, **fields)  # type: ignore[arg-type]


# URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_url", "kept"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000//", "http://10.0.0.1:8000"),
        ("HTTPS://Worker.Example/", "https://worker.example"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://host/Team/a/", "http://host/Team/a"),
    ],
)
def test_a_base_url_is_normalized(given_url: str, kept: str) -> None:
    assert endpoint_url(given_url) == kept
    assert endpoint_url(kept) == kept


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is not an http(s) URL"),
        ("10.0.0.1:8000", "is not an http(s) URL"),
        ("ftp://host", "is not an http(s) URL"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://host/?x=1", "without query"),
        ("http://host/#x", "without query"),
        ("http://host:70000", "is not a port"),
        ("http://host:port", "is not a port"),
        ("http://[::1", "in brackets"),
    ],
)
def test_an_invalid_base_url_is_rejected_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        endpoint_url(url)
    assert f"'{url}'" in str(caught.value)
    assert words in str(caught.value)


@given(st.text())
def test_any_text_is_a_url_or_a_value_error(text: str) -> None:
    try:
        kept = endpoint_url(text)
    except ValueError:
        return
    assert kept.startswith(("http://", "https://", "unix:/"))


# workers ---------------------------------------------------------------------------------------


def test_one_rank_is_one_worker_named_by_its_address() -> None:
    ranks = {0: EngineMetrics(block_size=16, num_gpu_blocks=100)}
    (worker,) = workers_of(facts(ranks=ranks, version="0.32.0"))
    assert (worker.id, worker.url, worker.dp_rank, worker.dp_size) == ("10.0.0.1:8000", URL, 0, 1)
    assert (worker.block_size, worker.num_blocks) == (16, 100)
    assert (worker.engine, worker.version) == ("vllm", "0.32.0")
    assert worker.served == (ServedModel("m", "root", None, 4096),)


def test_each_rank_is_a_worker() -> None:
    ranks = {2: EngineMetrics(num_gpu_blocks=7), 0: EngineMetrics(num_gpu_blocks=5)}
    workers = workers_of(facts(ranks=ranks))
    assert [(w.id, w.dp_rank, w.dp_size, w.num_blocks) for w in workers] == [
        ("10.0.0.1:8000#0", 0, 2, 5),
        ("10.0.0.1:8000#2", 2, 2, 7),
    ]


def test_an_endpoint_without_metrics_is_one_worker_without_a_block_size() -> None:
    (worker,) = workers_of(facts())
    assert (worker.dp_rank, worker.block_size, worker.num_blocks) == (0, None, None)


def test_endpoints_that_share_a_host_have_different_names_by_path() -> None:
    ids = [workers_of(facts(f"http://host/{team}"))[0].id for team in "ab"]
    assert ids == ["host/a", "host/b"]


def test_an_alias_shares_the_root_of_its_model() -> None:
    models = (ModelInfo("m", "/weights"), ModelInfo("alias", "/weights"))
    assert [s.root for s in served_models(models)] == ["/weights", "/weights"]


def test_an_adapter_shares_the_root_of_its_parent_and_keeps_its_name() -> None:
    models = (*MODELS, ModelInfo("lora", "/adapters/x", "m"))
    assert served_models(models)[1] == ServedModel("lora", "root", "lora", 4096, "m")


def test_a_model_without_a_root_is_its_own() -> None:
    models = (ModelInfo("m"), ModelInfo("lora", parent="m"), ModelInfo("stray", parent="elsewhere"))
    assert [(s.root, s.adapter) for s in served_models(models)] == [
        ("m", None),
        ("m", "lora"),
        ("m", "stray"),  # whatever it calls the model that it was trained on: no other is served here
    ]
    others = (ModelInfo("m"), ModelInfo("n", "/n"), ModelInfo("a", parent="/n"), ModelInfo("b", parent="x"))
    assert [s.root for s in served_models(others)] == ["m", "/n", "/n", "x"]


@pytest.mark.parametrize(
    ("reported_parent", "parent"),
    [("m", "m"), ("alias", "alias"), ("/weights", "m"), ("what-it-was-trained-on", "m")],
)
def test_the_parent_of_an_adapter_is_a_served_name_of_its_base(reported_parent: str, parent: str) -> None:
    """vLLM reports the base that the adapter was given with, else the first name; never a root."""
    models = (
        ModelInfo("m", "/weights"),
        ModelInfo("alias", "/weights"),
        ModelInfo("a", "/a", reported_parent),
    )
    assert served_models(models)[2].parent == parent


def test_added_or_removed_adapters_do_not_make_another_engine() -> None:
    adapter = ModelInfo("lora", "/adapters/x", "m")
    assert facts().is_like(replace(facts(), models=(*MODELS, adapter)))
    assert not facts().is_like(replace(facts(), models=(ModelInfo("n"),)))


def test_unreported_load_is_zero() -> None:
    assert reported(EngineMetrics()) == ReportedLoad(0, 0, 0.0)
    assert reported(EngineMetrics(2, 3, 0.5)) == ReportedLoad(2, 3, 0.5)


def test_unreported_load_is_shown_as_unknown() -> None:
    shown = [reported(each).shown for each in (EngineMetrics(), EngineMetrics(2, 3, 0.5))]
    assert [[show(name) for name in LOAD_FIGURES] for show in shown] == [[None, None, None], [2, 3, 0.5]]
    idle = reported(EngineMetrics(0, 0, 0.0))
    assert [idle.shown(name) for name in LOAD_FIGURES] == [0, 0, 0.0]


# events ----------------------------------------------------------------------------------------


def test_reported_event_sources_are_used() -> None:
    sources = (EventSource(0, "tcp://*:1"), EventSource(1, "tcp://*:2", "tcp://*:3", "kv"))
    known = facts(sources=sources)
    assert event_source(known, 1, 5557, 0) == sources[1]
    assert event_source(known, 2, 5557, 0) is None
    assert event_source(facts(sources=()), 0, 5557, 6557) is None


def test_events_without_a_reported_source_are_expected_at_the_configured_ports() -> None:
    assert event_source(facts(), 0, 5557, 0) == EventSource(0, "tcp://*:5557", None, "", is_reported=False)
    assert event_source(facts(), 3, 5557, 6557) == EventSource(
        3, "tcp://*:5560", "tcp://*:6560", "", is_reported=False
    )


def test_the_start_time_is_the_first_one_reported() -> None:
    assert facts().start_time_s is None
    ranks = {0: EngineMetrics(), 1: EngineMetrics(start_time_s=7.0)}
    assert facts(ranks=ranks).start_time_s == 7.0


def test_modes_are_ordered_and_have_labels() -> None:
    assert sorted(Mode) == [Mode.LOAD_ONLY, Mode.APPROXIMATE, Mode.EXACT, Mode.VERIFIED]
    assert [mode.label for mode in Mode] == ["load only", "approximate", "exact", "exact and verified"]


def test_ranks_are_merged_from_metrics_and_other_facts() -> None:
    reported = {0: EngineMetrics(block_size=1, num_gpu_blocks=100)}
    metrics = {0: EngineMetrics(num_requests_running=3, block_size=2), 1: EngineMetrics(4)}
    both = EngineMetrics(num_requests_running=3, block_size=2, num_gpu_blocks=100)
    assert known_ranks(reported, metrics) == {0: both}  # metrics cover ranks that cannot be chosen too
    assert known_ranks({}, metrics) == metrics
    assert known_ranks(reported, {}) == reported


def test_facts_are_compared_without_load() -> None:
    known = Facts("http://w:1", "e", (ModelInfo("m"),), {0: EngineMetrics(1, block_size=16)})
    assert known.is_like(replace(known, ranks={0: EngineMetrics(2, block_size=16)}))
    others: list[dict[str, Any]] = [
        {"engine": "f"},
        {"version": "2"},
        {"models": ()},
        {"sources": ()},
        {"ranks": {}},
    ]
    for other in others:
        assert not known.is_like(replace(known, **other))


def test_worker_urls_are_checked_and_deduplicated() -> None:
    assert worker_urls(["http://a:1/", "http://a:1"]) == ["http://a:1"]
    with pytest.raises(ConfigError, match=r"^worker: 'a:1' is not an http"):
        worker_urls(["a:1"])


@pytest.mark.parametrize(
    ("reported", "used"),
    [
        ((16, 16, 32), (16, 16, None)),
        ((32, 16, 16), (None, 16, 16)),
        ((32, 16), (32, None)),
        ((None, 16), (None, 16)),
        ((None,), (None,)),
        (tuple(range(1, 1025)), (1, *[None] * 1023)),
    ],
)
def test_an_endpoint_has_one_block_size(
    reported: tuple[int | None, ...], used: tuple[int | None, ...]
) -> None:
    ranks = {rank: EngineMetrics(block_size=size) for rank, size in enumerate(reported)}
    facts = Facts("http://w:1", "vllm", (ModelInfo("m"),), ranks)
    assert tuple(worker.block_size for worker in workers_of(facts)) == used
    assert not has_changed(facts, ranks)
