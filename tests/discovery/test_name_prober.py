"""The probe with a model name that does not exist."""

import json
import random

from engines import ENGINES
from gateway.core.eligibility import Eligibility, NameProof, UnusableCause
from gateway.core.engine import ModelInfo
from gateway.discovery.name_prober import NameProber, base_models, request_of, verdict_of
from gateway.discovery.probed import Facts, workers_of

URL = "http://w:1"
ONE, OTHER = ModelInfo("one"), ModelInfo("other")


def facts(*models: ModelInfo, engine: str = "llamacpp") -> Facts:
    return Facts(URL, engine, models)


def answer(model: str) -> bytes:
    return json.dumps({"model": model, "choices": [{"text": "a"}]}).encode()


class Endpoint:
    """Answers each request with `body`, and keeps what it was asked for."""

    def __init__(self, body: bytes | None) -> None:
        self.body = body
        self.asked: list[str] = []

    async def __call__(self, url: str, path: str, body: object) -> bytes | None:
        assert (url, path) == (URL, "/v1/completions") and isinstance(body, dict)
        self.asked.append(body["model"])
        return self.body


def test_the_verdict_names_the_model_that_answers() -> None:
    reason = "it answers for any model name, from 'other'"
    assert verdict_of(answer("other"), [ONE, OTHER]) == NameProof("other", reason)
    first = verdict_of(answer("what was asked for"), [ONE, OTHER])
    assert first is not None and first.root == "one"


def test_a_refusal_or_a_broken_answer_is_no_proof() -> None:
    for body in (None, b"", b"<html>", b'{"choices":[]}', b'{"error":"no such model"}', b"[" * 5000):
        assert verdict_of(body, [ONE, OTHER]) is None


def test_names_are_made_up_each_time() -> None:
    rng = random.Random(1)
    assert request_of(rng)["model"] != request_of(rng)["model"]


def test_adapters_are_no_base_models() -> None:
    assert base_models(facts(ONE, ModelInfo("ad", parent="one"))) == [ONE]


async def test_only_the_model_that_answers_keeps_its_name() -> None:
    eligibility, endpoint = Eligibility(ENGINES), Endpoint(answer("x"))
    prober, both = NameProber(eligibility, endpoint), facts(ONE, OTHER)
    assert await prober.prove(both) and not await prober.prove(both)
    (worker,) = workers_of(both)
    (unusable,) = eligibility.unusable(worker)
    assert unusable.served.name == "other" and unusable.cause is UnusableCause.NAME
    assert "would answer from another model" in str(unusable.error("other"))
    assert "1 endpoints" in repr(prober)
    endpoint.body = None  # restarted as an engine that refuses
    assert await prober.prove(both)
    assert not eligibility.unusable(worker)


async def test_nothing_is_asked_where_no_other_name_is_listed() -> None:
    endpoint = Endpoint(answer("x"))
    prober = NameProber(Eligibility(ENGINES), endpoint)
    assert not await prober.prove(facts(ONE))
    assert not await prober.prove(facts(ModelInfo("a", "root"), ModelInfo("b", "root")))
    assert not await prober.prove(facts(ONE, OTHER, engine="mlx"))  # it would unload its model
    assert endpoint.asked == []


async def test_an_endpoint_that_is_gone_is_forgotten() -> None:
    eligibility = Eligibility(ENGINES)
    prober = NameProber(eligibility, Endpoint(answer("x")))
    await prober.prove(facts(ONE, OTHER))
    assert prober.drop(URL) and not prober.drop(URL)
    assert eligibility.answers_any == {}
