"""Disaggregation: gateways before simulated prefill and decode workers that speak each connector's protocol.

Whatever fails, clients get the answer that one worker would have given, and nothing stays booked or pinned.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway, bundled_tokenizer
from gateway.config import load
from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.core.worker import Role, WorkerId
from tests.support.patience import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PROMPT = list(range(700))
FAST = {
    "prefill_tokens_per_s": 1e6,
    "decode_tokens_per_s": 5000.0,
    "transfer_latency_s": 0.001,
    "pull_timeout_s": 0.3,
}


class Story:
    """A gateway, its prefill and decode workers, and `alone`, which serves whole requests for comparison."""

    def __init__(
        self,
        gateway: Gateway,
        prefills: Sequence[Sim],
        decodes: Sequence[Sim],
        alone: Sim,
        http: aiohttp.ClientSession,
    ) -> None:
        self.gateway, self.prefills, self.decodes, self.alone, self.http = (
            gateway,
            prefills,
            decodes,
            alone,
            http,
        )

    async def ask(self, path: str = "/v1/completions", *, of: str = "", **body: Any) -> tuple[int, Any]:
        """Status and answer of the gateway, or of the server at the URL `of`."""
        asked = {"model": "m", "max_tokens": 12, "temperature": 0, **body}
        if path == "/v1/completions":
            asked.setdefault("prompt", PROMPT)
        base = of or f"http://127.0.0.1:{self.gateway.port}"
        async with self.http.post(base + path, json=asked) as answer:
            data = await answer.read()
            if answer.content_type == "text/event-stream":
                return answer.status, [
                    line[6:] for line in data.decode().splitlines() if line.startswith("data: ")
                ]
            return answer.status, json.loads(data)

    async def assert_same(self, path: str = "/v1/completions", **body: Any) -> None:
        """Assert that the gateway answers as the worker `alone` does."""
        answer, alone = await self.ask(path, **body), await self.ask(path, of=self.alone.url, **body)
        assert (answer[0], _comparable(answer[1])) == (alone[0], _comparable(alone[1]))

    async def faults(self, sim: Sim, **faults: Any) -> None:
        async with self.http.post(sim.url + "/sim/faults", json=faults) as answer:
            assert answer.status == 200, await answer.text()

    async def pinned(self, sim: Sim) -> int:
        async with self.http.get(sim.url + "/sim/stats") as answer:
            stats = await answer.json()
        pinned: int = stats["pd"]["pinned_blocks"]
        return pinned

    def booked(self) -> int:
        ledger = self.gateway.router.ledger
        return sum(ledger.load(member.worker.id).num_in_flight for member in self.gateway.fleet)

    async def is_clean(self) -> None:
        router = self.gateway.router
        await until(lambda: not self.booked() and not router._open and not router._prefilling)
        assert not self.gateway.parts.routing.disaggregation_stats.pinned

    async def plan_of(self, prompt: list[int]) -> tuple[str, str]:
        """Plan and reason of one request, while no other is under way."""
        before = self.gateway.parts.routing.disaggregation_stats.plans.copy()
        status, _ = await self.ask(prompt=prompt)
        (plan,) = self.gateway.parts.routing.disaggregation_stats.plans - before
        assert status == 200
        return plan

    def has_cached(self, sim: Sim, prompt: list[int]) -> bool:
        """Events have reported all full blocks of a prompt at a worker."""
        worker = WorkerId(sim.url.removeprefix("http://"))
        hashes = hash_blocks(tokens_of(prompt), 16, root_hash("m"))
        return self.gateway.index.holds(worker, hashes)

    @property
    def plans(self) -> dict[str, int]:
        plans: dict[str, int] = {}
        for (plan, _), count in self.gateway.parts.routing.disaggregation_stats.plans.items():
            plans[plan] = plans.get(plan, 0) + count
        return plans

    @property
    def failures(self) -> dict[str, int]:
        return dict(self.gateway.parts.routing.disaggregation_stats.failures)


def _comparable(answer: Any) -> Any:
    """An answer without the fields that differ from answer to answer."""
    if isinstance(answer, list):
        return [_comparable(json.loads(event)) if event != "[DONE]" else event for event in answer]
    if isinstance(answer, dict):
        return {
            name: _comparable(value) if name == "usage" else value
            for name, value in answer.items()
            if name not in ("id", "created", "prompt_tokens_details", "kv_transfer_params")
        }
    return answer


@asynccontextmanager
async def story(
    *, prefills: int = 1, decodes: int = 1, mode: str = "always", config: Any = None, **fields: Any
) -> AsyncIterator[Story]:
    sim = {"kv_blocks": 4000, "max_num_seqs": 64, **FAST, **fields}
    async with AsyncExitStack() as stack:

        async def start(role: str, **more: Any) -> Sim:
            flags = sim | more if role else {k: v for k, v in sim.items() if not k.startswith("pd_")}
            started = await Sim(SimConfig(port=0, **(flags | ({"pd_role": role} if role else {})))).start()
            stack.push_async_callback(started.stop)
            return started

        p = [await start("prefill") for _ in range(prefills)]
        d = [await start("decode") for _ in range(decodes)]
        alone = await start("")
        options = {
            "prefill": [each.url for each in p],
            "decode": [each.url for each in d],
            "tokenizer": [str(bundled_tokenizer())],
            "disaggregation": [mode],
            "expose_headers": True,
            "port": 0,
            "admin_port": 0,
        }
        gateway = Gateway(load(options | (config or {}), environ={}))
        stack.push_async_callback(gateway.stop, 0)
        await gateway.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await until(lambda: len(gateway.fleet) == prefills + decodes)
        await gateway.warm_up(5)
        yield Story(gateway, p, d, alone, http)


CHAT = {"messages": [{"role": "user", "content": "I want a long story about the sea and its people. " * 20}]}


PROTOCOLS: dict[str, dict[str, Any]] = {
    "nixl": {},
    "mooncake": {"connector": ["mooncake"]},
    "shared_storage": {"connector": ["shared_storage"]},
    "sglang": {"engine": ["sglang"], "events": "off"},
    "trtllm": {"engine": ["trtllm"], "events": "off"},
}
"""Protocols of the simulated engines, with the options that a gateway needs for each."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_disaggregated_answers_equal_those_of_one_worker(protocol: str, tmp_path: Path) -> None:
    store = {"pd_store": tmp_path} if protocol == "shared_storage" else {}
    async with story(decodes=2, config=PROTOCOLS[protocol], pd_protocol=protocol, **store) as s:
        for stream in (False, True):
            await s.assert_same(stream=stream)
            await s.assert_same("/v1/chat/completions", **CHAT, stream=stream)
            await s.assert_same(
                logprobs=2, stream=stream, stream_options={"include_usage": True} if stream else None
            )
        assert s.plans == {"prefill_decode": 6}
        for stream in (False, True):
            await s.assert_same(n=2, stream=stream)  # rejected: temperature 0
            if protocol != "sglang":
                await s.assert_same(n=2, temperature=1, stream=stream)
                await s.assert_same(prompt=[[*PROMPT[:50]], [*PROMPT[50:90]]], stream=stream)
        assert s.plans == {"prefill_decode": 8 if protocol == "sglang" else 6}
        assert s.failures == ({"rejected": 2} if protocol == "sglang" else {})
        await s.is_clean()
        for prefill in s.prefills:
            assert await s.pinned(prefill) == 0


# choice of a plan ------------------------------------------------------------------------------


async def test_next_turn_goes_directly_to_the_decode_worker_of_the_turn_before() -> None:
    """A long cold prompt is disaggregated, since the decode workers are busy; its cached next turn is not."""
    slow = {"prefill_tokens_per_s": 20_000.0, "decode_tokens_per_s": 500.0}
    async with story(prefills=1, decodes=2, mode="auto", **slow) as s:
        running = asyncio.gather(*[s.ask(prompt=[i] * 50, max_tokens=400) for i in range(16)])
        await until(lambda: s.booked() >= 16)
        first, second = PROMPT * 4, PROMPT * 4 + list(range(40))
        assert await s.plan_of(first) == ("prefill_decode", "lower predicted TTFT with a transfer")
        await until(lambda: any(s.has_cached(sim, first) for sim in s.decodes))
        assert await s.plan_of(second) == ("direct", "prefix mostly cached on the decode worker")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await s.is_clean()


async def test_requests_fail_without_a_decode_worker() -> None:
    """Prefill workers never decode, even where no decode worker is up."""
    async with story() as s:
        await s.decodes[0].stop()
        status, answer = await s.ask()
        assert status in (502, 503), answer
        await until(lambda: not s.gateway.fleet.is_ready("m"))
        status, answer = await s.ask()
        assert (status, answer["error"]["message"]) == (503, "no decode worker for 'm' is up")
        await s.is_clean()


async def test_decode_worker_serves_whole_requests_without_a_prefill_worker() -> None:
    async with story() as s:
        await s.prefills[0].stop()
        for _ in range(3):
            await s.assert_same()
        await s.is_clean()


# failures --------------------------------------------------------------------------------------


PREFILL_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"refuse_prefill": {"probability": 1.0}}, "busy"),
    "reset": ({"connections": "reset"}, "died"),
    "hangs": ({"hang": True}, "timeout"),
    "without parameters": ({"omit_params": {"probability": 1.0}}, "rejected"),
    "gone before the pull": ({"drop_pinned": True}, "transfer"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", PREFILL_FAULTS)
async def test_client_does_not_notice_a_failed_prefill_leg(fault: str, stream: bool) -> None:
    faults, cause = PREFILL_FAULTS[fault]
    async with story(config={"disaggregation_prefill_timeout_s": 0.5}) as s:
        await s.faults(s.prefills[0], **faults)
        await s.assert_same(stream=stream)
        await s.assert_same("/v1/chat/completions", **CHAT, stream=stream)
        assert set(s.failures) == {cause}, s.failures
        await s.is_clean()
        await s.faults(s.prefills[0])
        num = s.plans.get("prefill_decode", 0)
        await until(lambda: s.gateway.fleet.is_ready("m"))
        await s.assert_same(stream=stream, prompt=PROMPT[::-1])
        assert s.plans["prefill_decode"] == num + 1 or cause in ("timeout", "died")
        await s.is_clean()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
async def test_client_does_not_notice_blocks_lost_before_the_pull(policy: str) -> None:
    async with story(decodes=2, kv_load_failure=policy) as s:
        await s.faults(s.prefills[0], drop_pinned=True)
        answers = await asyncio.gather(*[s.ask(prompt=[i, *PROMPT]) for i in range(20)])
        assert {status for status, _ in answers} == {200}
        assert set(s.failures) == ({"transfer"} if policy == "fail" else set())
        await s.is_clean()


async def test_failed_decode_leg_is_repeated_with_a_fresh_prefill() -> None:
    async with story(decodes=2, config={"max_attempts": 4}) as s:
        await s.faults(s.decodes[0], connections="reset")
        for number in range(6):
            await s.assert_same(prompt=[number, *PROMPT], stream=number % 2 == 0)
        await s.is_clean()


async def test_another_prefill_worker_takes_over_a_refused_prefill() -> None:
    async with story(prefills=2) as s:
        await s.faults(s.prefills[0], refuse_prefill={"probability": 1.0})
        for number in range(8):
            await s.assert_same(prompt=[number, *PROMPT])
        assert s.plans == {"prefill_decode": 8 + s.failures.get("busy", 0)}
        await s.is_clean()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["drop_pinned", "hang_transfer"])
async def test_failed_transfer_to_a_dependent_decode_worker_is_repeated_from_another_prefill_worker(
    fault: str, stream: bool
) -> None:
    """SGLang's decode workers compute no prompt, so another prefill worker repeats a failed transfer."""
    config = PROTOCOLS["sglang"]
    async with story(prefills=2, config=config, pd_protocol="sglang", lease_s=1.0) as s:
        await s.faults(s.prefills[0], **{fault: True})
        await asyncio.gather(*[s.assert_same(prompt=[i, *PROMPT], stream=stream) for i in range(6)])
        assert s.failures and set(s.plans) == {"prefill_decode"}
        await s.is_clean()


async def test_disconnect_during_prefill_leaves_no_block_pinned() -> None:
    async with story(prefill_tokens_per_s=2000.0) as s:
        asked = asyncio.gather(s.ask(prompt=PROMPT * 3))
        await until(lambda: s.booked() == 2)
        asked.cancel()
        await s.is_clean()
        assert await s.pinned(s.prefills[0]) == 0


async def test_disconnect_during_decode_ends_the_decode_leg() -> None:
    async with story(decode_tokens_per_s=50.0) as s:
        asked = asyncio.gather(s.ask(max_tokens=400))
        await until(lambda: any(s.has_cached(decode, PROMPT) for decode in s.decodes))
        asked.cancel()
        await s.is_clean()
        assert await s.pinned(s.prefills[0]) == 0


async def test_differing_prompts_of_a_pair_are_logged_and_the_pair_is_used_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with story() as s:
        await s.faults(s.prefills[0], extra_prompt_tokens=3)
        await s.assert_same()
        assert "prompt tokens differ" in caplog.text
        await s.assert_same(stream=True)
        assert s.gateway.parts.routing.disaggregation_stats.num_mismatches == 1
        assert s.failures == {"mismatch": 1}
        assert s.plans == {"prefill_decode": 1, "direct": 1}
        await s.is_clean()


async def test_prefill_worker_with_another_chat_template_is_not_paired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Chat templates are compared before the first request, which would fail."""
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(bundled_tokenizer(), tokenizer)
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config["chat_template"] = "Be brief. " + config["chat_template"]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    async with story() as s:
        other = await Sim(SimConfig(port=0, pd_role="prefill", tokenizer=tokenizer, **FAST)).start()
        try:
            policy, (decode,) = s.gateway.parts.routing.disaggregation_stats.policy, s.decodes
            name = WorkerId(decode.url.removeprefix("http://"))
            s.gateway.roster.add(other.url, Role.PREFILL)
            await until(lambda: bool(policy.banned_with(name)))
            assert list(policy.banned_with(name)) == [other.url.removeprefix("http://")]
            assert "in a chat with tools they differ from token number" in caplog.text
            for number in range(4):
                await s.assert_same("/v1/chat/completions", **CHAT, seed=number)
            assert s.plans == {"prefill_decode": 4}
            assert s.failures == {}
        finally:
            await other.stop()


async def test_gateway_with_other_token_counts_trusts_the_pair_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with story() as s:
        for sim in (*s.prefills, *s.decodes):
            await s.faults(sim, extra_prompt_tokens=3)
        for number in range(3):
            assert (await s.ask(prompt=[number, *PROMPT]))[0] == 200
        assert "prompt tokens agree" in caplog.text
        assert s.failures == {"mismatch": 1}
        assert s.plans == {"prefill_decode": 3}
        await s.is_clean()


# bad input -------------------------------------------------------------------------------------


async def test_transfer_parameters_of_clients_are_dropped() -> None:
    steering = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.9"},
        "bootstrap_host": "x",
    }
    async with story(mode="never") as s:
        await s.assert_same(**steering)
    async with story(mode="always") as s:
        await s.assert_same(**steering)
        assert s.plans == {"prefill_decode": 1}


async def test_transfer_parameters_of_clients_pass_where_allowed() -> None:
    async with story(config={"allow_transfer_fields": True}) as s:
        ask = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        status, answer = await s.ask(max_tokens=1, **ask)
        assert (status, s.plans) == (200, {})
        assert answer["kv_transfer_params"]["remote_block_ids"]


async def test_decode_worker_declared_as_prefill_does_not_join(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with story() as s:
        sim = await Sim(SimConfig(port=0, pd_role="decode")).start()
        try:
            gateway = Gateway(load({"prefill": [sim.url], "port": 0, "admin_port": 0}, environ={}))
            await gateway.start()
            await gateway.roster.first_look()
            (endpoint,) = gateway.roster
            assert (endpoint.is_misplaced, len(gateway.fleet)) == (True, 0)
            assert f"{sim.url} is a decode worker, but was declared as --prefill" in caplog.text
            await gateway.stop(0)
        finally:
            await sim.stop()
        assert s.failures == {}
