import json
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.core.engine import EngineMetrics
from gateway.observability.metrics import Metrics
from gateway.observability.verification.metrics import VerifyCollector, describe, summary
from tests.support.worlds.verified import VerifiedWorld, W, ids

TEXT = "a few tokens"


def text_of(model: str, tokens: Sequence[int]) -> str | None:
    assert len(tokens) <= 8
    return TEXT if tokens else None


def page(world: VerifiedWorld) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(VerifyCollector(world.verifier))
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def wrong_world() -> VerifiedWorld:
    world = VerifiedWorld()
    world.store(ids())
    world.ask(ids(), 16)
    world.ask(ids(), 0)
    world.ask(ids(1), 16)
    return world


def test_alarms_are_counted() -> None:
    world = VerifiedWorld()
    decision = world.decide(ids(), cache_salt="tenant")
    world.store(ids(), salt="tenant")
    world.answer(decision, 0)
    assert page(world)['kvgate_salt_alarms_total{worker="w:1"}'] == 0
    world.ask(ids(1), 16, cache_salt="tenant")
    assert page(world)['kvgate_salt_alarms_total{worker="w:1"}'] == 1


def test_metrics_of_verification_are_exposed() -> None:
    world = wrong_world()
    for total in (10, 50):
        world.verifier.scraped(W, EngineMetrics(prefix_cache_queries_total=total, prefix_cache_hits_total=5))
    shown = page(world)
    assert round(shown['kvgate_prediction_exact_ratio{worker="w:1"}'], 3) == 0.333
    assert shown['kvgate_prediction_mean_error_tokens{worker="w:1"}'] == 0
    assert round(shown['kvgate_prediction_mean_absolute_error_tokens{worker="w:1"}'], 2) == 10.67
    assert shown['kvgate_prediction_confidence_ratio{worker="w:1"}'] == 1
    assert shown['kvgate_prompt_token_mismatch{worker="w:1"}'] == 0
    assert shown['kvgate_mispredictions_total{cause="unknown",worker="w:1"}'] == 1
    assert shown['kvgate_mispredictions_total{cause="not_reported",worker="w:1"}'] == 1
    assert shown['kvgate_mispredictions_total{cause="evicted",worker="w:1"}'] == 0
    assert shown['kvgate_engine_prompt_tokens{worker="w:1"}'] == 40
    assert shown['kvgate_engine_cached_tokens{worker="w:1"}'] == 0


def test_a_worker_without_requests_has_full_confidence() -> None:
    world = VerifiedWorld()
    assert summary(world.verifier, W) == {
        "compared": 0,
        "unknown": 0,
        "exact_share": None,
        "mean_error_tokens": None,
        "mean_absolute_error_tokens": None,
        "confidence": 1.0,
        "token_parity": "agree",
    }
    assert describe(world.verifier, Metrics(), text_of) == {"workers": []}
    assert page(world) == {}


def test_a_worker_with_unknown_surpluses_only_has_no_share_of_right_predictions() -> None:
    world = VerifiedWorld(None)
    world.ask(ids(), 16)
    shown = summary(world.verifier, W)
    assert (shown["compared"], shown["unknown"], shown["exact_share"]) == (0, 1, None)


def test_the_admin_page_shows_wrong_predictions_and_the_first_token_difference() -> None:
    world = VerifiedWorld()
    world.store(ids())
    world.ask(ids(), 0)
    world.ask(ids(), 32)
    for i in range(3):
        decision = world.decide(ids(i + 5))
        world.store([*ids(i + 5, 9), 7, *ids(i + 5)[10:]])
        world.answer(decision, 0)
        world.now += 1.0
    world.settle()
    shown = describe(world.verifier, Metrics(), text_of)
    assert json.loads(json.dumps(shown)) is not None
    (w,) = shown["workers"]
    assert (w["worker"], w["compared"], w["token_parity"]) == (W, 5, "differ")
    assert [wrong["cause"] for wrong in w["latest_mispredictions"]] == ["reported_later", "unknown"]
    assert w["mispredictions"]["reported_later"] == 1
    assert sum(w["mispredictions"].values()) == 2
    assert w["engine"] is None
    assert w["sent"] == {"prompt_tokens": 0, "predicted_cached_tokens": 0}
    assert w["prompts"]["sampled_differing"] == 3
    difference = w["prompts"]["first_difference"]
    assert (difference["position"], difference["window_start"]) == (9, 6)
    assert difference["engine_window"] == {
        "tokens": (7006, 7007, 7008, 7, 7010, 7011, 7012, 7013),
        "text": TEXT,
    }
