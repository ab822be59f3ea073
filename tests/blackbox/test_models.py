"""Models as clients call them, and as workers do."""

import json
from pathlib import Path

import pytest

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
