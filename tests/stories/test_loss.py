"""Cache loss before simulated engines: each cause of a loss is attributed, and the sums are right.

After each story the gateway's computed tokens equal those that the engines count.
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from loadtest.ports import sim_ports
from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.patience import patience, until
from tests.support.texts import conversations

pytestmark = pytest.mark.process

DEADLINE_S = patience(20.0)
LORA = "tuned"


class Story:
    """Simulated workers, the gateway in this process, and a client."""

    def __init__(self, gateway: Gateway, sims: list[Sim], session: aiohttp.ClientSession) -> None:
        self.gateway, self.sims, self.session = gateway, sims, session
        self.texts = conversations(23, 1200)  # a seed of pieces far apart

    async def ask(self, system: str, user: str = "And now?", **more: Any) -> int:
        """Cached tokens that the worker reports for a chat."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {"model": "m", "messages": messages, "max_tokens": 2} | more
        url = f"http://127.0.0.1:{self.gateway.port}/v1/chat/completions"
        async with self.session.post(url, json=body) as answer:
            completion = await answer.json()
            assert answer.status == 200, completion
        return int(completion["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def until(self, is_true: Callable[[], object]) -> None:
        await until(is_true)

    def are_streams_exact(self) -> bool:
        states = [member.stream for member in self.gateway.fleet]
        return states == [StreamState.EXACT if sim.config.events else None for sim in self.sims]

    async def settled(self) -> dict[str, Any]:
        """The cache loss report, once the index is exact and every loss is explained."""
        losses = self.gateway.parts.cache_loss.losses

        async def is_explained() -> bool:
            return await self._is_exact() and not losses.is_busy

        await until(is_explained)
        url = f"http://127.0.0.1:{self.gateway.admin_port}/admin/cache-loss"
        async with self.session.get(url) as answer:
            report: dict[str, Any] = await answer.json()
        assert report["computed_tokens"] == self._computed()
        assert report["unattributed_tokens"] == 0
        causes = sum(cause["recomputed_tokens"] for cause in report["causes"])
        assert report["new_tokens"] + causes == report["computed_tokens"]
        return report

    def _computed(self) -> int:
        """Prompt tokens that the engines computed, by their own counters."""
        counts = [rank.scheduler.counts for sim in self.sims for rank in sim.ranks]
        return sum(each.prompt_tokens - each.cached_tokens for each in counts)

    async def _is_exact(self) -> bool:
        index = self.gateway.index
        for sim in self.sims:
            if not sim.config.events:
                continue
            async with self.session.get(f"{sim.url}/sim/cache") as answer:
                cached = {int(block) for _, block, _ in (await answer.json())["0"]}
            member = next(m for m in self.gateway.fleet if m.worker.url == sim.url)
            if cached != set(index.blocks(member.worker.id)):
                return False
        return True


@asynccontextmanager
async def story(
    num_workers: int = 1, config: dict[str, Any] | None = None, **sim: Any
) -> AsyncIterator[Story]:
    flags = {"prefill_tokens_per_s": 1e6, "decode_tokens_per_s": 2000.0, "lora": (LORA,)} | sim
    sims = [await Sim(SimConfig(seed=seed, **sim_ports(), **flags)).start() for seed in range(num_workers)]
    options: dict[str, Any] = {"tokenizer": [str(bundled_tokenizer())]} | (config or {})
    gateway = Gateway(
        config_of(worker=[sim.url for sim in sims], port=0, admin_port=0, probe_interval_s=0.2, **options)
    )
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            s = Story(gateway, sims, session)
            await s.until(s.are_streams_exact)
            yield s
    finally:
        await gateway.stop()
        for each in sims:
            await each.stop()


def causes(report: dict[str, Any]) -> dict[str, int]:
    return {cause["id"]: cause["recomputed_tokens"] for cause in report["causes"]}


async def test_new_text_is_no_loss() -> None:
    async with story() as s:
        for _ in range(4):
            await s.ask(s.texts.piece(2000), s.texts.piece(300))
        report = await s.settled()
        assert report["causes"] == [] and report["new_tokens"] > 1000


async def test_loss_of_a_small_cache_is_attributed_to_eviction() -> None:
    async with story(kv_blocks=120) as s:
        systems = [s.texts.piece(2000) for _ in range(6)]
        for system in systems:
            await s.ask(system)
        await s.settled()
        assert await s.ask(systems[0]) == 0
        report = await s.settled()
        assert list(causes(report)) == ["evicted"] and causes(report)["evicted"] > 300
        (worst,) = report["largest"]
        assert worst["holder"] == s.sims[0].url.removeprefix("http://")


async def test_loss_of_a_restarted_worker_is_attributed_to_the_restart() -> None:
    async with story() as s:
        system = s.texts.piece(2000)
        await s.ask(system)
        report = await s.settled()
        before = s._computed()
        await s.sims[0].restart(0.0)
        await s.until(lambda: not any(s.gateway.index.num_blocks(m.worker.id) for m in s.gateway.fleet))
        await s.until(s.are_streams_exact)
        s.sims[0].ranks[0].scheduler.counts.prompt_tokens += before  # its counters start at 0 again
        assert await s.ask(system) == 0
        report = await s.settled()
        assert list(causes(report)) == ["worker_restarted"]
        assert report["largest"][0]["holder"] == s.sims[0].url.removeprefix("http://")


async def test_loss_by_routing_away_is_attributed_with_the_work_it_avoided() -> None:
    async with story(2) as s:
        system = s.texts.piece(2000)
        await s.ask(system)
        await s.settled()
        index = s.gateway.index
        holder = next(m.worker.id for m in s.gateway.fleet if index.num_blocks(m.worker.id))
        now = time.monotonic()
        booking = s.gateway.router.ledger.book(holder, 100_000, 100_000, now)  # the holder is busy
        assert await s.ask(system) == 0
        s.gateway.router.ledger.release(booking)
        report = await s.settled()
        assert list(causes(report)) == ["routed_away"]
        (worst,) = report["largest"]
        assert worst["holder"] == holder != worst["worker"]
        assert 99_000 < worst["avoided_queue_tokens"] == report["avoided_queue_tokens"] <= 101_000


async def test_loss_includes_generated_tokens() -> None:
    """The evicted blocks of a conversation include those of generated tokens."""
    async with story(kv_blocks=120) as s:
        url = f"http://127.0.0.1:{s.gateway.port}/v1/chat/completions"
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Say a lot."}]}
        more = {"max_tokens": 300, "min_tokens": 300, "ignore_eos": True}
        async with s.session.post(url, json=body | more) as answer:
            completion = await answer.json()
        assert completion["usage"]["completion_tokens"] == 300
        for _ in range(6):
            await s.ask(s.texts.piece(2000))
        await s.settled()
        turn = {"role": "assistant", "content": completion["choices"][0]["message"]["content"]}
        body["messages"] = [*body["messages"], turn, {"role": "user", "content": "More."}]
        async with s.session.post(url, json=body | {"max_tokens": 2}) as answer:
            assert answer.status == 200
        assert causes(await s.settled())["evicted"] >= 200


@pytest.mark.parametrize(
    ("more", "cause"), [({"cache_salt": "a"}, "other_salt"), ({"model": LORA}, "other_adapter")]
)
async def test_loss_by_another_salt_or_adapter_is_attributed_to_it(more: dict[str, Any], cause: str) -> None:
    async with story() as s:
        system = s.texts.piece(2000)
        await s.ask(system)
        await s.settled()
        assert await s.ask(system, **more) == 0
        report = await s.settled()
        assert list(causes(report)) == [cause] and causes(report)[cause] > 300
        assert await s.ask(system, **more) > 300
        assert causes(await s.settled()) == causes(report)


@pytest.mark.parametrize("shows", [False, True])
async def test_loss_by_a_time_in_the_system_prompt_is_located(shows: bool) -> None:
    async with story(config={"admin_show_prompt_text": shows}) as s:
        head, rest = s.texts.piece(600), s.texts.piece(2000)
        for minute in (10, 27, 38):
            await s.ask(f"{head}\nNow it is 2026-11-21 09:{minute}:00.\n{rest}", s.texts.piece(100))
        report = await s.settled()
        assert list(causes(report)) == ["broken_prefix"] and causes(report)["broken_prefix"] > 600
        (worst,) = report["largest"]
        assert worst["recomputed_requests"] == 2
        broken = worst["prefix_break"]
        assert (broken["message"], broken["role"], broken["kind"]) == (0, "system", "date or time")
        assert 100 < broken["token"] < 400 and broken["differing_tokens"] < 10
        assert broken["text"] == ("09:27:00." if shows else None)


async def test_loss_by_another_chat_template_is_attributed_to_tokenizer_drift(tmp_path: Path) -> None:
    own = shutil.copytree(bundled_tokenizer(), tmp_path / "own")
    settings = json.loads((own / "tokenizer_config.json").read_text())
    settings["chat_template"] = "Hello. " + settings["chat_template"]
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    async with story(kv_blocks=120, config={"tokenizer": [str(own)], "tokenizer_probe": False}) as s:
        systems = [s.texts.piece(2000) for _ in range(6)]
        for system in systems:
            await s.ask(system)
        assert "tokenizer_drift" not in causes(await s.settled())
        await s.ask(systems[0])
        report = await s.settled()
        assert list(causes(report)) == ["tokenizer_drift"] and causes(report)["tokenizer_drift"] > 300
        assert report["largest"][0]["worker"] == s.sims[0].url.removeprefix("http://")


@pytest.mark.parametrize("flags", [{}, {"events": False}])
async def test_concurrent_traffic_leaves_no_loss_unexplained(flags: dict[str, Any]) -> None:
    """`settled` asserts that no computed token is unexplained."""
    async with story(2, kv_blocks=300, **flags) as s:

        async def talk(seed: int) -> None:
            for body in conversations(seed).turns(4):
                more = {name: value for name, value in body.items() if name != "messages"}
                url = f"http://127.0.0.1:{s.gateway.port}/v1/chat/completions"
                salt = {"cache_salt": "b"} if seed % 5 == 0 else {}
                sent = {"messages": body["messages"], **more, **salt}
                async with s.session.post(url, json=sent) as answer:
                    assert answer.status == 200

        await asyncio.gather(*map(talk, range(30)))
        await asyncio.gather(*map(talk, range(30)))
        assert causes(await s.settled())["evicted"] > 0


async def test_processes_of_a_host_merge_their_cache_loss() -> None:
    sim = await Sim(
        SimConfig(port=0, kv_blocks=51, prefill_tokens_per_s=1e6, decode_tokens_per_s=2000.0)
    ).start()
    try:
        async with running("--processes", "2", "--worker", sim.url) as bench:

            async def view(path: str = "/admin/cache-loss") -> dict[str, Any]:
                return dict((await bench.gateway.admin("GET", path)).json)

            async def has_joined() -> bool:
                return (await view("/admin/workers"))["endpoints"][0]["state"] == "joined"

            await until(has_joined)
            clients = [await bench.client() for _ in range(2)]  # one at each process
            for _ in range(2):
                for number, client in enumerate(clients):
                    # the cache has room for one of the two prompts
                    prompt = [number * 1000 + i for i in range(799)]
                    answer = await client.ask(post(completion(prompt, max_tokens=1)))
                    assert answer.status == 200, answer.body
                    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

            async def is_counted() -> bool:
                return (await view())["computed_tokens"] >= 4 * 799  # of both processes

            await until(is_counted)
            report = await view()
            assert (report["computed_tokens"], report["new_tokens"]) == (4 * 799, 2 * 799 + 2 * 15)
            assert causes(report) == {"evicted": 2 * 784}
            (worst,) = report["largest"]
            assert (worst["recomputed_tokens"], worst["recomputed_requests"]) == (2 * 784, 2)
            metrics = (await bench.gateway.admin("GET", "/metrics")).body.decode()
            assert 'kvgate_recomputed_prompt_tokens_total{cause="evicted"} 1568.0' in metrics
    finally:
        await sim.stop()
