"""Requests that SGLang would misinterpret: adapters by their names, and salts before 0.5.11."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import CHAT, completion, post, request, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.patience import until

ADAPTER = {"id": "ad1", "parent": "m", "root": "/adapters/ad1"}
SALTS = "0123456789abcdef" * 4


class SglangFake(FakeWorker):
    """Worker that lists an adapter, and answers any name by its base."""

    version: str | None = "0.5.23"
    info: dict[str, Any] = {}
    isolation: bool | None = None
    """How it answers salt probes: False ignores salts, None does not answer."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__(models)
        self.seen: set[Any] = set()

    def _own(self, call: Call) -> bytes:
        cards = [{"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 8192}, *self.models[1:]]
        reported = {"version": self.version, "page_size": 16, "max_total_num_tokens": 100_000, **self.info}
        pages: dict[bytes, bytes] = {
            b"/health": b"",
            b"/v1/models": json.dumps({"object": "list", "data": cards}).encode(),
            b"/metrics": b'sglang:num_running_reqs{dp_rank="0"} 0.0\n',
            b"/server_info": json.dumps(reported).encode(),
        }
        if self.isolation is not None and call.target == b"/v1/completions":
            return wire(200, self._proof(json.loads(call.body)))
        page = pages.get(call.target)
        return wire(404) if page is None else wire(200, page)

    def _proof(self, body: dict[str, Any]) -> bytes:
        """Answer to a salt probe: a hit for a prompt seen under the same salt, or under any."""
        key = (body["cache_salt"] if self.isolation else None, *body["prompt"])
        cached = len(body["prompt"]) - 1 if key in self.seen else 0
        self.seen.add(key)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return json.dumps({"usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}}).encode()


async def sglang(
    bench: Bench,
    *models: Any,
    version: str | None = "0.5.23",
    isolation: bool | None = None,
    **info: Any,
) -> SglangFake:
    worker = SglangFake(("m", *models))
    worker.version, worker.info, worker.isolation = version, info, isolation
    await worker.start()
    bench.workers.append(worker)
    await bench.gateway.join(worker)
    return worker


def asked(worker: SglangFake) -> list[Any]:
    """Model of each received request, and its other fields' names."""
    bodies = [json.loads(call.body) for call in worker.calls]
    return [(body.pop("model", None), sorted(body)) for body in bodies]


async def test_an_adapter_is_asked_for_by_sglang_s_own_name(bench: Bench) -> None:
    worker = await sglang(bench, ADAPTER)
    for named in ({"model": "ad1"}, {"model": "m:ad1"}, {"model": "m", "lora_path": "ad1"}):
        for path, field, value in (
            ("/v1/completions", "prompt", "hi"),
            (CHAT, "messages", [{"role": "user", "content": "hi"}]),
            ("/v1/messages", "messages", [{"role": "user", "content": "hi"}]),
            ("/v1/embeddings", "input", "hi"),
        ):
            worker.calls.clear()
            answer = await bench.ask(post(json.dumps({**named, field: value}).encode(), target=path))
            assert answer.status == 200, (path, answer.body)
            assert asked(worker) == [("m:ad1", [field])]
    listed = (await bench.ask(request("GET", "/v1/models"))).json["data"]
    assert [model["id"] for model in listed] == ["ad1", "m"]
    assert (await bench.ask(post(completion(model="m")))).status == 200
    assert asked(worker)[-1][0] == "m"


async def test_no_route_reaches_the_base_by_an_adapter_s_name(bench: Bench) -> None:
    worker = await sglang(bench, ADAPTER)
    for named in ({"model": "ad1"}, {"model": "m:ad1"}, {"model": "m", "lora_path": "ad1"}):
        for path in ("/v1/responses", "/v1/score", "/rerank", "/classify", "/v1/chat/completions/batch"):
            answer = await bench.ask(post(json.dumps({**named, "input": "hi"}).encode(), target=path))
            assert answer.status == 501, path
            assert b"cannot reach the adapter 'ad1'" in answer.body
            assert b"answer there from its base model 'm'" in answer.body
    answer = await bench.ask(post(b'{"text":"hi"}', target="/generate?model=ad1"))
    assert answer.status == 400, "its bodies have no model"
    assert not worker.calls
    answer = await bench.ask(post(b'{"text":"hi","lora_path":"ad1"}', target="/generate"))
    assert (answer.status, json.loads(worker.calls[0].body)["lora_path"]) == (200, "ad1")


async def test_an_adapter_that_would_end_the_engine_is_rejected(bench: Bench) -> None:
    worker = await sglang(bench, ADAPTER)
    for given in (["ad1"], [None], 7):
        answer = await bench.ask(
            post(json.dumps({"model": "m", "prompt": "hi", "lora_path": given}).encode())
        )
        assert (answer.status, answer.error["param"]) == (400, "lora_path")
    answer = await bench.ask(post(b'{"model":"m","prompt":"hi","lora_path":"nix"}'))
    assert (answer.status, answer.error["message"]) == (404, "the adapter 'nix' of 'm' does not exist")
    assert not worker.calls


async def test_each_engine_gets_its_own_name(bench: Bench) -> None:
    worker = await sglang(bench, ADAPTER)
    other = await bench.worker("m", ADAPTER)
    for named in ("ad1", "m:ad1"):
        for _ in range(8):
            body = json.dumps({"model": named, "input": "hi"}).encode()
            assert (await bench.ask(post(body, target="/v1/responses"))).status == 200
            assert (await bench.ask(post(completion(model=named)))).status == 200
    assert {model for model, _ in asked(worker)} <= {"m:ad1"}
    assert {json.loads(call.body)["model"] for call in other.calls} == {"ad1"}
    assert {call.target for call in worker.calls} <= {b"/v1/completions"}


async def test_an_adapter_loaded_later_is_used(bench: Bench) -> None:
    worker = await sglang(bench)
    assert (await bench.ask(post(completion(model="ad1")))).status == 404, "an unknown name"
    worker.models = ("m", ADAPTER)
    refreshed = await bench.gateway.admin("POST", "/admin/adapters/names", b"{}")
    assert refreshed.json["adapters"][0]["workers"] == [worker.url]
    assert (await bench.ask(post(completion(model="ad1")))).status == 200
    assert asked(worker)[0][0] == "m:ad1"


@pytest.fixture
def salted(tmp_path: Path) -> tuple[str, ...]:
    secret = tmp_path / "secret"
    secret.write_text(SALTS)
    return "--tenant-salt-file", str(secret)


@pytest.mark.parametrize("version", ["0.5.10", "0.5.10.post1", None, "0.0.0.dev1+g123"])
async def test_tenants_are_not_sent_to_an_sglang_that_ignores_salts(
    salted: tuple[str, ...], version: str | None
) -> None:
    async with running(*salted) as bench:
        worker = await sglang(bench, version=version)
        answer = await bench.ask(post(completion()))
        assert answer.status == 501
        assert "'m' cannot isolate the cached prompts of tenants" in answer.error["message"]
        assert "--" not in answer.error["message"]
        assert (await bench.ask(request("GET", "/v1/models"))).json["data"] == []
        shown = re.escape(version or "unknown")
        await bench.gateway.logged(
            rf"worker {worker.url}: not used for m \(sglang ignores cache_salt before version 0\.5\.11, "
            rf"which --tenant-salt-file needs; this is version {shown}\)"
        )
        shown = f'kvgate_worker_unusable_models{{reason="salt",worker="{worker.id}"}}'
        assert (await bench.gateway.metrics())[shown] == 1
        newer = await sglang(bench, version="0.5.11")
        for _ in range(8):
            assert (await bench.ask(post(completion()))).status == 200
        assert (len(worker.calls), len(newer.calls)) == (0, 8)
        assert b'"cache_salt":"' in newer.calls[0].body


async def test_a_proof_overrules_the_version(salted: tuple[str, ...]) -> None:
    async with running(*salted) as bench:
        shared = await sglang(bench, ADAPTER, version="0.5.23", isolation=False)
        assert (await bench.ask(post(completion()))).status == 501
        await bench.gateway.logged(
            rf"worker {shared.url}: tenants' caches are shared; it gets no tenant's request \(it ignores "
            r"cache_salt: 32 tokens of another salt's prompt were cached\)"
        )
        shown = f'kvgate_worker_unusable_models{{reason="salt",worker="{shared.id}"}}'
        assert (await bench.gateway.metrics())[shown] == 2
        endpoint = await bench.gateway.endpoint(shared)
        assert endpoint is not None and list(endpoint["workers"][0]["unusable_models"]) == ["m", "ad1"]
        apart = await sglang(bench, version=None, isolation=True)
        for _ in range(8):
            assert (await bench.ask(post(completion()))).status == 200
        assert (len(shared.calls), len(apart.calls)) == (0, 8)


async def test_a_restart_is_proven_again(salted: tuple[str, ...]) -> None:
    async with running(*salted, "--probe-interval-s", "0.1") as bench:
        worker = await sglang(bench, version="0.5.22", isolation=True)
        assert (await bench.ask(post(completion()))).status == 200
        await worker.die()

        async def is_down() -> bool:
            return not await bench.gateway.is_up(worker)

        await until(is_down, "it is down")
        worker.version, worker.isolation = "0.5.23", False
        await worker.start()

        async def is_refused() -> bool:
            return (await bench.ask(post(completion()))).status == 501

        await until(is_refused, "the new process is judged by its own proof")


async def test_an_upgraded_engine_is_recognized(salted: tuple[str, ...]) -> None:
    async with running(*salted, "--probe-interval-s", "0.1") as bench:
        worker = await sglang(bench, version="0.5.10")
        assert (await bench.ask(post(completion()))).status == 501
        await worker.die()

        async def is_down() -> bool:
            return not await bench.gateway.is_up(worker)

        await until(is_down, "it is seen to be down")
        worker.version = "0.5.11"
        await worker.start()

        async def is_used() -> bool:
            return (await bench.ask(post(completion()))).status == 200

        await until(is_used, "the new version is used")


async def test_without_salts_an_old_version_is_used(bench: Bench) -> None:
    worker = await sglang(bench, version="0.5.10")
    assert (await bench.ask(post(completion()))).status == 200
    assert len(worker.calls) == 1


async def test_engines_without_salts_are_not_used_for_tenants(salted: tuple[str, ...]) -> None:
    """llama.cpp, Ollama, MLX and others have no salts at all."""
    async with running(*salted, "--engine", "openai") as bench:
        worker = await bench.worker("m")
        assert (await bench.ask(post(completion()))).status == 501
        await bench.gateway.logged(r"not used for m \(openai has no cache_salt, which --tenant-salt-file ")
        assert not worker.calls


async def test_pairs_of_old_sglang_are_not_used_for_tenants(salted: tuple[str, ...]) -> None:
    async with running(*salted) as bench:
        workers = [
            await sglang(bench, ADAPTER, version="0.5.10", disaggregation_mode=mode)
            for mode in ("prefill", "decode")
        ]
        for model in ("m", "ad1"):
            assert (await bench.ask(post(completion(model=model)))).status == 501
        assert not any(worker.calls for worker in workers)


async def checked(*flags: str) -> tuple[int | None, str]:
    """Exit code of `kvgate check`, and its output."""
    process = await asyncio.create_subprocess_exec(
        *GATEWAY, "check", *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(DEADLINE_S):
        printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def test_check_names_the_limit(salted: tuple[str, ...]) -> None:
    worker = SglangFake(("m", ADAPTER))
    worker.version = "0.5.10"
    await worker.start()
    try:
        code, printed = await checked("--worker", worker.url)
        assert "not used" not in printed
        assert code == 0, printed
        code, printed = await checked("--worker", worker.url, *salted)
        assert "WRONG: not used for m, ad1 (sglang ignores cache_salt before version 0.5.11" in printed
        assert code == 1, printed
        worker.isolation = True
        code, printed = await checked("--worker", worker.url, *salted)
        assert "tenants' caches are kept apart (32 tokens cached under their own salt" in printed
        assert code == 0, printed
        worker.isolation = False
        code, printed = await checked("--worker", worker.url, *salted)
        assert "WRONG: not used for m, ad1 (it ignores cache_salt: 32 tokens of another salt's" in printed
        assert code == 1, printed
    finally:
        await worker.die()
