"""Names of models, as clients and as workers use them."""

import json
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer
from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import CHAT, post, wire
from tests.support.blackbox.scripted_worker import Call
from tests.support.patience import until

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_gets_its_own_name_of_the_model_and_the_rest_unchanged(
    tmp_path: Path, processes: str
) -> None:
    config = tmp_path / "kvgate.toml"
    config.write_text('[models."org/name"]\naliases = ["gpt-4", "fast"]\n')

    async def script(call: Call) -> None:
        await call.send(wire(200, b'{"model":"served","choices":[]}'))

    async with running("--config", str(config), "--processes", processes) as bench:
        card = {"id": "served", "root": "org/name"}
        worker = await bench.worker(card, script=script)
        for number, (path, model) in enumerate(
            [(CHAT, "gpt-4"), ("/v1/embeddings", "fast"), (CHAT, "served")]
        ):
            fields = b'"messages":[{"role":"user","content":"\\u00e9"}],"input":"x","temperature":0.70}'
            sent = b'{ "model" : "%s", ' % model.encode() + fields
            answer = await bench.ask(post(sent, target=path))
            assert (answer.status, answer.body) == (200, b'{"model":"served","choices":[]}')
            got = worker.calls[number].wish
            assert json.loads(got) == {**json.loads(sent), "model": "served"}
            assert fields.split(b",", 1)[0] in got and b"0.70" in got
        unknown = await bench.ask(post(b'{"model":"gpt-5","prompt":"x"}'))
        assert unknown.status == 404
        assert unknown.json["error"]["message"] == (
            "the model 'gpt-5' does not exist; known: fast, gpt-4, served"
        )


AGENT_BODIES = {
    "/v1/messages": {"max_tokens": 5, "system": "Be brief.", "messages": MESSAGES},
    "/v1/responses": {"instructions": "Be brief.", "input": "hi"},
}


@pytest.mark.parametrize("path", AGENT_BODIES)
async def test_requests_of_agents_are_routed_by_prompt_and_arrive_unchanged(path: str) -> None:
    async def script(call: Call) -> None:
        await call.send(wire(200, b'{"usage":{"input_tokens":30,"output_tokens":1}}'))

    flags = ("--tokenizer", str(bundled_tokenizer()), "--no-tokenizer-probe", "--expose-headers")
    async with running(*flags) as bench:
        worker = await bench.worker("m", script=script)
        sent = json.dumps({"model": "m", **AGENT_BODIES[path]}).encode()
        answer = await bench.ask(post(sent, target=path))
        assert answer.status == 200 and worker.calls[0].wish == sent
        (name,) = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"]
        reported = (await bench.gateway.admin("GET", f"/admin/decisions/{name}")).json
        assert (reported["tokenized_by"], reported["prompt_tokens"] > 10) == ("fastokens", True)
        odd = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": 5}]})
        assert (await bench.ask(post(odd.encode(), target="/v1/messages"))).status == 200


GONE = wire(404, b'{"error":{"message":"The model `lora` does not exist."}}')


async def test_an_adapter_unloaded_at_a_worker_is_served_by_another() -> None:
    base, adapter = {"id": "m", "root": "/w"}, {"id": "lora", "root": "/a", "parent": "m"}

    async def has(call: Call) -> None:
        await call.send(wire(200, b'{"choices":[]}'))

    async def has_not(call: Call) -> None:
        await call.send(GONE if b'"lora"' in call.wish else wire(200, b'{"choices":[]}'))

    async with running("--probe-interval-s", "0.2", "--policy", "round_robin") as bench:
        first = await bench.worker(base, adapter, script=has_not)
        second = await bench.worker(base, adapter, script=has)
        third = await bench.worker(base, script=has)
        first.models = [base]
        for _ in range(4):
            assert (await bench.ask(post(b'{"model":"lora","prompt":"x"}'))).status == 200
        assert len(second.calls) == 4 and not third.calls

        async def is_known() -> bool:
            reported = (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"]
            names = {worker["id"]: worker["models"] for each in reported for worker in each["workers"]}
            return names[f"127.0.0.1:{first.port}"] == ["m"]

        await until(is_known, "the adapter is gone")
        num_asked = len(first.calls)
        third.models = [base, adapter]
        second.models = [base]

        async def is_moved() -> bool:
            await bench.ask(post(b'{"model":"lora","prompt":"x"}'))
            return bool(third.calls)

        await until(is_moved, "the adapter is where it was loaded")
        assert len(first.calls) == num_asked


async def test_an_adapter_missing_at_two_workers_is_404() -> None:
    base, adapter = {"id": "m", "root": "/w"}, {"id": "lora", "root": "/a", "parent": "m"}

    async def has_not(call: Call) -> None:
        await call.send(GONE)

    async with running("--probe-interval-s", "100") as bench:
        workers = [await bench.worker(base, adapter, script=has_not) for _ in range(3)]
        answer = await bench.ask(post(b'{"model":"lora","prompt":"x"}'))
        assert (answer.status, b"does not exist" in answer.body) == (404, True)
        assert sum(len(worker.calls) for worker in workers) == 2
        answer = await bench.ask(post(b'{"model":"m","prompt":"x"}'))
        assert answer.status == 404
        assert sum(len(worker.calls) for worker in workers) == 3


async def test_a_form_is_routed_by_an_alias_and_gets_the_name_at_the_worker(tmp_path: Path) -> None:
    config = tmp_path / "kvgate.toml"
    config.write_text('[models.m]\naliases = ["whisper-1"]\n')

    async def script(call: Call) -> None:
        await call.send(wire(200, b'{"text":"hi"}'))

    async with running("--config", str(config)) as bench:
        worker = await bench.worker("m", script=script)
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x--\r\n'
        kind = (b"Content-Type", b"multipart/form-data; boundary=x")
        answer = await bench.ask(post(form, kind, target="/v1/audio/transcriptions"))
        assert (answer.status, worker.calls[0].wish) == (200, form.replace(b"whisper-1", b"m"))
