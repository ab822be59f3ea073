"""Verification before simulated engines: predicted and reported cached tokens, causes of mispredictions."""

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.app import bundled_tokenizer
from gateway.commands.check_run import check
from gateway.config import replaced
from tests.support.patience import until
from tests.support.stories.fleet_story import FleetStory, fleet_story, worker_id
from tests.support.texts import conversations

pytestmark = pytest.mark.process


async def admin(s: FleetStory, path: str) -> Any:
    async with s.session.get(f"http://127.0.0.1:{s.gateway.admin_port}{path}") as answer:
        assert answer.status == 200
        return await answer.json()


async def verified(s: FleetStory) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = (await admin(s, "/admin/verify"))["workers"]
    return workers


async def streamed(s: FleetStory, body: dict[str, Any]) -> str:
    async with s.session.post(f"{s.url}/v1/chat/completions", json=body | {"stream": True}) as answer:
        assert answer.status == 200
        return await answer.text()


def turns(seed: int, num: int = 4) -> list[dict[str, Any]]:
    return [body | {"max_tokens": 4} for body in conversations(seed).turns(num)]


async def test_streams_are_verified_and_clients_see_no_usage() -> None:
    async with fleet_story() as s:
        for seed in range(4):
            for body in turns(seed):
                chunks = [
                    json.loads(line[6:])
                    for line in (await streamed(s, body)).splitlines()
                    if line.startswith("data: {")
                ]
                assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
                assert "system_fingerprint" in chunks[-1]
            await s.settled()
        workers = await verified(s)
        assert sum(w["compared"] for w in workers) == 16
        assert {w["exact_share"] for w in workers} == {1.0}
        assert {w["token_parity"] for w in workers} == {"agree"}


async def test_engine_counters_include_requests_past_the_gateway() -> None:
    async with fleet_story() as s:
        for body in turns(1):
            await streamed(s, body)

        async def counted() -> tuple[int, int]:
            workers = await verified(s)
            return (
                sum((w["engine"] or {"prompt_tokens": 0})["prompt_tokens"] for w in workers),
                sum(w["sent"]["prompt_tokens"] for w in workers),
            )

        async def counters_differ_by(others: int) -> bool:
            engine, ours = await counted()
            return engine == ours + others

        await until(lambda: counters_differ_by(0))
        (worker,) = await verified(s)
        (sim,) = [sim for sim in s.sims if worker_id(sim) == worker["worker"]]
        body = {"model": "m", "prompt": list(range(100, 150)), "max_tokens": 1}
        async with s.session.post(f"{sim.url}/v1/completions", json=body) as answer:
            assert answer.status == 200
        await until(lambda: counters_differ_by(50))


async def test_each_misprediction_at_a_small_cache_has_a_cause() -> None:
    async with fleet_story(kv_blocks=60) as s:
        await s.talk(1)
        await s.talk(2)
        await s.settled()
        workers = await verified(s)
        assert sum(w["compared"] for w in workers) == 48
        for w in workers:
            assert w["mispredictions"]["tokens_differ"] == 0
            assert (w["exact_share"] == 1.0) is not any(w["mispredictions"].values())


def tokenizer_with(path: Path, old: str, new: str) -> Path:
    """A copy of the bundled tokenizer with another chat template."""
    shutil.copytree(bundled_tokenizer(), path)
    config = path / "tokenizer_config.json"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return path


OTHERS = {
    "another count": ("'<|im_start|>system\\\\n'", "'<|im_start|>system!\\\\n'"),
    "the same count": ("lead + '<|im_end|>", "lead + '<|endoftext|>"),
}


@pytest.mark.parametrize("other", OTHERS)
async def test_other_chat_template_is_detected_with_the_first_differing_position(
    tmp_path: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The metric reports it, and the admin API the first position that differs. The caches have room for
    all: a sample proves nothing where blocks were evicted meanwhile."""
    tokenizer = tokenizer_with(tmp_path / "other", *OTHERS[other])
    async with fleet_story(tokenizer=tokenizer, options={"tokenizer_probe": False}, kv_blocks=20_000) as s:
        seeds = count()

        async def differing_workers() -> list[dict[str, Any]]:
            found = [w for w in await verified(s) if w["token_parity"] == "differ"]
            return [w for w in found if w["prompts"]["first_difference"]["position"] is not None]

        async def differs() -> bool:
            for body in turns(next(seeds), 2):
                await streamed(
                    s, body | {"messages": [{"role": "system", "content": "Be brief."}, *body["messages"]]}
                )
            return bool(await differing_workers())

        await until(differs, "a worker that differs", pause_s=0.05)
        worker = (await differing_workers())[0]
        found = worker["prompts"]["first_difference"]
        at = found["position"] - found["window_start"]
        ours, engines = found["gateway_window"]["tokens"], found["engine_window"]["tokens"]
        assert ours[:at] == engines[:at]
        assert ours[at] != engines[at]
        assert (found["gateway_tokens"] == found["engine_tokens"]) is (other == "the same count")
        assert ("!" in found["engine_window"]["text"]) is (other == "another count")
        assert ("<|endoftext|>" in found["engine_window"]["text"]) is (other == "the same count")
        assert "<|im_" in found["gateway_window"]["text"]
        async with s.session.get(f"http://127.0.0.1:{s.gateway.admin_port}/metrics") as answer:
            page = await answer.text()
        assert f'kvgate_prompt_token_mismatch{{worker="{worker["worker"]}"}} 1.0' in page
        assert await check(replaced(s.gateway.config, tokenizer_probe=True)) == 1
        assert "in a chat with a system message from token" in capsys.readouterr().out


async def test_check_passes_an_engine_with_the_same_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    async with fleet_story() as s:
        assert await check(s.gateway.config) == 0
    assert "WRONG" not in capsys.readouterr().out


async def test_confidence_drops_for_a_worker_that_evicts_without_events() -> None:
    """Without events the gateway assumes that sent prompts stay cached, and sees no eviction."""
    async with fleet_story(events=False) as s:
        bodies = [turns(seed, 1)[0] for seed in range(8)]
        for _ in range(12):
            for body in bodies:
                await s.chat(body)
            for sim in s.sims:
                async with s.session.post(f"{sim.url}/reset_prefix_cache") as answer:
                    assert answer.status == 200
        workers = await verified(s)
        doubted = {w["worker"] for w in workers if w["confidence"] < 1.0}
        assert doubted
        assert all(w["mispredictions"]["never_stored"] >= 16 for w in workers if w["worker"] in doubted)
        newest = (await admin(s, "/admin/decisions"))["decisions"][: len(bodies)]
        records = [await admin(s, f"/admin/decisions/{each}") for each in newest]
        overlapping = [(r, c) for r in records for c in r["candidates"] if c["overlap_tokens"]]
        discounted = [(r, c) for r, c in overlapping if c["confidence"] < 1.0]
        assert discounted
        for record, c in discounted:
            assert c["worker"] in doubted
            assert c["uncached_tokens"] > record["prompt_tokens"] - c["overlap_tokens"]
