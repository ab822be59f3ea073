"""Models as clients call them, and as workers do."""

import json
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer
from tests.blackbox.harness import CHAT, Call, post, running, wire

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_gets_the_name_that_it_serves_and_all_else_as_it_came(
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
async def test_what_agents_say_is_routed_by_its_prompt_and_arrives_as_it_was_sent(path: str) -> None:
    async def script(call: Call) -> None:
        await call.send(wire(200, b'{"usage":{"input_tokens":30,"output_tokens":1}}'))

    flags = ("--tokenizer", str(bundled_tokenizer()), "--no-probe-tokens", "--expose-headers")
    async with running(*flags) as bench:
        worker = await bench.worker("m", script=script)
        sent = json.dumps({"model": "m", **AGENT_BODIES[path]}).encode()
        answer = await bench.ask(post(sent, target=path))
        assert answer.status == 200 and worker.calls[0].wish == sent
        (name,) = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"]
        told = (await bench.gateway.admin("GET", f"/admin/decisions/{name}")).json
        assert (told["tokenized_by"], told["prompt_tokens"] > 10) == ("fastokens", True)
        odd = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": 5}]})
        assert (await bench.ask(post(odd.encode(), target="/v1/messages"))).status == 200
