"""Adapters on a real SGLang server: chosen by its own names, never answered by the base, indexed apart."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_figures import ADAPTERS, EngineFigures
from tests.support.engine_model import make_adapter
from tests.support.engine_talk import chat, complete, gateway_of, ids, post, text
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

CHOOSING = [  # three ways to ask for the same adapter, and their other fields
    {"model": "adapter-a"},
    {"model": "m:adapter-a"},
    {"model": "m", "lora_path": "adapter-a"},
]
NUM_PROMPTS = 3
"""The adapters' weights are random and small: some answers are the base's."""


@pytest.fixture(scope="module")
def worker(start_module_sglang: Start, tmp_path_factory: pytest.TempPathFactory) -> SglangWorker:
    folder = tmp_path_factory.mktemp("lora")
    lora = [(name, make_adapter(folder / name)) for name in ("adapter-a", "adapter-b")]
    return start_module_sglang(lora=lora).wait_ready()


@pytest.fixture(scope="module")
def gateway(worker: SglangWorker) -> Iterator[GatewayProcess]:
    with gateway_of(worker, flags=("--admin-load-adapters",)) as process:
        yield process


def bodies(path: str) -> list[dict[str, Any]]:
    given = [text(f"adapters {i}", 40) for i in range(NUM_PROMPTS)]
    fields: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    if path == "/v1/completions":
        return [fields | {"prompt": each} for each in given]
    return [fields | {"messages": [{"role": "user", "content": each}]} for each in given]


def said(body: dict[str, Any]) -> str:
    if "choices" in body:
        first = body["choices"][0]
        return str(first["text"] if "text" in first else first["message"]["content"])
    return str(body.get("content") or body.get("text"))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_each_way_to_name_an_adapter_reaches_it(
    gateway: GatewayProcess, worker: SglangWorker, figures: EngineFigures, path: str
) -> None:
    by_engine = {
        name: [said(json.loads(worker.post(path, body | {"model": name}))) for body in bodies(path)]
        for name in ("m", "m:adapter-a", "m:adapter-b")
    }
    assert by_engine["m"] != by_engine["m:adapter-a"] != by_engine["m:adapter-b"] != by_engine["m"]
    cases = [(choosing, "m:adapter-a") for choosing in CHOOSING]
    for choosing, name in [*cases, ({"model": "adapter-b"}, "m:adapter-b"), ({"model": "m"}, "m")]:
        texts = [said(post(gateway, path, body | choosing).body) for body in bodies(path)]
        num_wrong = sum(one != other for one, other in zip(texts, by_engine[name], strict=True))
        figures.add(ADAPTERS, "SGLang 0.5.23", num_wrong, len(texts))
        assert texts == by_engine[name], choosing


def test_adapters_and_base_share_no_cached_token(gateway: GatewayProcess) -> None:
    for first, other in (("m", "adapter-a"), ("adapter-a", "m"), ("adapter-a", "adapter-b")):
        prompt = ids((first, other), 120)
        cold, warm = complete(gateway, prompt, model=first), complete(gateway, prompt, model=first)
        apart = complete(gateway, prompt, model=other)
        assert (cold.predicted, cold.cached) == (0, 0)
        assert warm.predicted == warm.cached == 119
        assert (apart.predicted, apart.cached) == (0, 0)


def test_turns_of_chats_with_adapters_are_predicted(gateway: GatewayProcess) -> None:
    for model in ("adapter-a", "m:adapter-b", "m"):
        turns = [text(f"chat {model}", 40)]
        for turn in range(3):
            answer = chat(gateway, *turns, model=model)
            assert answer.predicted == answer.cached, (model, turn)
            turns += [answer.text, text(f"more {model} {turn}", 15)]
        assert answer.cached > 60


def test_routes_that_answer_from_the_base_reject_adapters(
    gateway: GatewayProcess, worker: SglangWorker
) -> None:
    """The engine's own answer shows why: on these routes an adapter's name changes nothing."""
    fields = {"input": text("base", 20), "max_output_tokens": 4, "temperature": 0}
    base, adapter = (
        json.loads(worker.post("/v1/responses", fields | {"model": model}))["output"][-1]["content"]
        for model in ("m", "m:adapter-a")
    )
    assert [part["text"] for part in base] == [part["text"] for part in adapter]
    score = {"query": "one", "items": ["two"], "label_token_ids": [5, 6]}
    for path, body in (("/v1/responses", fields), ("/v1/score", score)):
        for choosing in CHOOSING:
            answer = post(gateway, path, body | choosing)
            assert answer.status == 501, (path, choosing)
        assert post(gateway, path, body | {"model": "m"}).status == 200


def test_the_engine_s_own_route_reads_the_field(gateway: GatewayProcess, worker: SglangWorker) -> None:
    body = {"text": text("native", 30), "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    base, adapter = (json.loads(worker.post("/generate", body | more))["text"] for more in ({}, LORA))
    assert base != adapter
    assert post(gateway, "/generate", body | LORA).body["text"] == adapter
    assert post(gateway, "/generate", body).body["text"] == base


LORA = {"lora_path": "adapter-a"}


def test_an_adapter_that_would_end_the_engine_is_rejected(
    gateway: GatewayProcess, worker: SglangWorker
) -> None:
    for given in (["adapter-a"], [], 7, {"a": 1}):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/generate", {"text": "a"})):
            assert post(gateway, path, body | {"model": "m", "lora_path": given}).status == 400
    assert post(gateway, "/v1/completions", {"model": "m", "prompt": "a", "lora_path": "nix"}).status == 404
    assert post(gateway, "/v1/completions", {"model": "m:nix", "prompt": "a"}).status == 404
    assert worker.is_ready()


def test_an_adapter_is_loaded_asked_and_unloaded(
    gateway: GatewayProcess, worker: SglangWorker, tmp_path: Path
) -> None:
    path = make_adapter(tmp_path / "adapter-c")
    status, done = admin(gateway, "POST", "", {"adapter": "adapter-c", "path": str(path)})
    assert (status, done["workers"][0]["is_listed"]) == (200, True), done
    prompt = ids("loaded", 60)
    answer = complete(gateway, prompt, model="adapter-c")
    assert answer.text == worker.complete(prompt, 4, model="m:adapter-c")["choices"][0]["text"]
    assert answer.text != complete(gateway, prompt).text
    status, done = admin(gateway, "DELETE", "/adapter-c")
    assert (status, done["workers"][0]["is_listed"]) == (200, False), done
    assert complete(gateway, prompt, model="adapter-c").status == 404


def admin(gateway: GatewayProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{gateway.admin_url}/admin/adapters{path}", data, method=method)
    request.add_header("content-type", "application/json")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=patience(120)
    ) as answer:
        return answer.status, json.load(answer)
