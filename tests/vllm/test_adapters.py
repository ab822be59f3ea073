"""LoRA adapters that a real vLLM loads and unloads through the gateway's admin API."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.engine_model import make_adapter
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.engine import VllmWorker

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, method: str, body: object = None) -> tuple[int, dict[str, Any]]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with _direct.open(request, timeout=patience(120)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def test_adapter_is_loaded_served_and_unloaded(
    start_vllm: Callable[..., VllmWorker],
    vllm_model: Path,
    tmp_path: Path,
) -> None:
    path = make_adapter(tmp_path / "adapter-b")
    flags = ("--enable-lora", "--max-lora-rank", "8")
    allowed = (("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"),)
    worker = start_vllm(served_model_name=("m", "other"), extra_args=flags, extra_env=allowed).wait_ready()
    with GatewayProcess(
        "--worker", worker.url, "--tokenizer", str(vllm_model), "--admin-load-adapters"
    ) as gateway:
        at = f"{gateway.admin_url}/admin/adapters"
        status, answer = ask(at, "POST", {"adapter": "missing", "path": str(tmp_path / "missing")})
        assert (status, answer["workers"][0]["is_listed"]) == (502, False)
        assert "No adapter found for" in answer["error"]["message"]
        status, answer = ask(at, "POST", {"adapter": "b", "path": str(path)})
        (result,) = answer["workers"]
        assert (status, result["is_done"], result["is_listed"]) == (200, True, True)
        assert result["message"] == "Success: LoRA adapter 'b' added successfully."
        body = {"model": "b", "prompt": [500] * 70, "max_tokens": 2, "temperature": 0}
        status, answer = ask(f"{gateway.url}/v1/completions", "POST", body)
        assert (status, answer["model"]) == (200, "b")
        engines, ours = (
            {each["id"]: (each["root"], each["parent"]) for each in ask(f"{url}/v1/models", "GET")[1]["data"]}
            for url in (worker.url, gateway.url)
        )
        assert engines["b"] == (str(path), "m")
        assert {name: parent for name, (_, parent) in ours.items()} == {
            name: parent for name, (_, parent) in engines.items()
        }
        assert ask(at, "POST", {"adapter": "b", "path": str(path)})[1]["workers"][0]["message"] == (
            "already loaded"
        )
        status, answer = ask(f"{at}/b", "DELETE")
        assert (status, answer["workers"][0]["message"]) == (
            200,
            "Success: LoRA adapter 'b' removed successfully.",
        )
        wait_until(lambda: ask(f"{gateway.url}/v1/completions", "POST", body)[0] == 404, 5)


def test_loading_fails_at_an_engine_without_runtime_adapters(
    vllm_worker: VllmWorker, vllm_model: Path
) -> None:
    flags = ("--tokenizer", str(vllm_model), "--admin-load-adapters")
    with GatewayProcess("--worker", vllm_worker.url, *flags) as gateway:
        status, answer = ask(f"{gateway.admin_url}/admin/adapters", "POST", {"adapter": "b", "path": "/x"})
        assert status == 502
        assert answer["workers"][0]["message"].startswith("no /v1/load_lora_adapter: start the engine with")
