"""Prefill and decode on different workers: gateways before simulated engines that speak each connector's
protocol over real sockets. Whatever fails, the client sees what one worker would have answered, and nothing
stays booked or pinned.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
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

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

DEADLINE_S = 20.0
PROMPT = list(range(700))
FAST = {
    "prefill_tokens_per_s": 1e6,
    "decode_tokens_per_s": 5000.0,
    "transfer_latency_s": 0.001,
    "pull_timeout_s": 0.3,
}


class Split:
    """A gateway, its prefill and decode workers, and one beside them that does all itself."""

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
        """Status and answer: of the gateway, or of another one by its URL."""
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

    async def same(self, path: str = "/v1/completions", **body: Any) -> None:
        """The gateway answers as the worker does that stands alone."""
        told, alone = await self.ask(path, **body), await self.ask(path, of=self.alone.url, **body)
        assert (told[0], _said(told[1])) == (alone[0], _said(alone[1]))

    async def sim(self, sim: Sim, **faults: Any) -> None:
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
        assert not self.gateway.splits.pinned

    async def plan_of(self, prompt: list[int]) -> tuple[str, str]:
        """By which, and why, it was served, alone of all."""
        before = self.gateway.splits.plans.copy()
        status, _ = await self.ask(prompt=prompt)
        (plan,) = self.gateway.splits.plans - before
        assert status == 200
        return plan

    def holds(self, sim: Sim, prompt: list[int]) -> bool:
        """Its events tell of all full blocks of a prompt."""
        worker = WorkerId(sim.url.removeprefix("http://"))
        hashes = hash_blocks(tokens_of(prompt), 16, root_hash("m"))
        return self.gateway.index.holds(worker, hashes)

    @property
    def plans(self) -> dict[str, int]:
        plans: dict[str, int] = {}
        for (plan, _), count in self.gateway.splits.plans.items():
            plans[plan] = plans.get(plan, 0) + count
        return plans

    @property
    def failures(self) -> dict[str, int]:
        return dict(self.gateway.splits.failures)


def _said(answer: Any) -> Any:
    """Without what differs from answer to answer."""
    if isinstance(answer, list):
        return [_said(json.loads(event)) if event != "[DONE]" else event for event in answer]
    if isinstance(answer, dict):
        return {
            name: _said(value) if name == "usage" else value
            for name, value in answer.items()
            if name not in ("id", "created", "prompt_tokens_details", "kv_transfer_params")
        }
    return answer


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def split(
    *, prefills: int = 1, decodes: int = 1, mode: str = "always", config: Any = None, **fields: Any
) -> AsyncIterator[Split]:
    sim = {"kv_blocks": 4000, "max_num_seqs": 64, **FAST, **fields}
    async with AsyncExitStack() as stack:

        async def start(role: str, **more: Any) -> Sim:
            told = sim | more if role else {k: v for k, v in sim.items() if not k.startswith("pd_")}
            started = await Sim(SimConfig(port=0, **(told | ({"pd_role": role} if role else {})))).start()
            stack.push_async_callback(started.stop)
            return started

        p = [await start("prefill") for _ in range(prefills)]
        d = [await start("decode") for _ in range(decodes)]
        alone = await start("")
        options = {
            "prefill": [one.url for one in p],
            "decode": [one.url for one in d],
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
        yield Split(gateway, p, d, alone, http)


CHAT = {"messages": [{"role": "user", "content": "Tell me a long story about the sea and its people. " * 20}]}


PROTOCOLS: dict[str, dict[str, Any]] = {
    "nixl": {},
    "mooncake": {"connector": ["mooncake"]},
    "shared_storage": {"connector": ["shared_storage"]},
    "sglang": {"engine": ["sglang"], "events": "off"},
    "trtllm": {"engine": ["trtllm"], "events": "off"},
}
"""Each with the options that a gateway needs for it."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_answers_are_those_of_one_worker(protocol: str, tmp_path: Path) -> None:
    store = {"pd_store": tmp_path} if protocol == "shared_storage" else {}
    async with split(decodes=2, config=PROTOCOLS[protocol], pd_protocol=protocol, **store) as told:
        for stream in (False, True):
            await told.same(stream=stream)
            await told.same("/v1/chat/completions", **CHAT, stream=stream)
            await told.same(
                logprobs=2, stream=stream, stream_options={"include_usage": True} if stream else None
            )
        assert told.plans == {"prefill_decode": 6}
        for stream in (False, True):
            await told.same(n=2, stream=stream)  # refused: temperature 0
            if protocol != "sglang":
                await told.same(n=2, temperature=1, stream=stream)
                await told.same(prompt=[[*PROMPT[:50]], [*PROMPT[50:90]]], stream=stream)
        assert told.plans == {"prefill_decode": 8 if protocol == "sglang" else 6}
        assert told.failures == ({"refused": 2} if protocol == "sglang" else {})
        await told.is_clean()
        for prefill in told.prefills:
            assert await told.pinned(prefill) == 0


# whether at all --------------------------------------------------------------------------------


async def test_the_next_turn_goes_direct_to_who_decoded_the_one_before() -> None:
    """A cold and long prompt is split, since answers run there; what the decode worker holds then is not."""
    slow = {"prefill_tokens_per_s": 20_000.0, "decode_tokens_per_s": 500.0}
    async with split(prefills=1, decodes=2, mode="auto", **slow) as told:
        running = asyncio.gather(*[told.ask(prompt=[i] * 50, max_tokens=400) for i in range(16)])
        await until(lambda: told.booked() >= 16)
        first, second = PROMPT * 4, PROMPT * 4 + list(range(40))
        assert await told.plan_of(first) == ("prefill_decode", "lower predicted TTFT with a transfer")
        await until(lambda: any(told.holds(sim, first) for sim in told.decodes))
        assert await told.plan_of(second) == ("direct", "prefix mostly cached on the decode worker")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await told.is_clean()


async def test_without_decode_workers_nobody_answers() -> None:
    """A prefill worker is never overloaded with what it is not there for."""
    async with split() as told:
        await told.decodes[0].stop()
        status, answer = await told.ask()
        assert status in (502, 503), answer
        await until(lambda: not told.gateway.fleet.is_ready("m"))
        status, answer = await told.ask()
        assert (status, answer["error"]["message"]) == (503, "no worker that decodes for 'm' is up")
        await told.is_clean()


async def test_without_prefill_workers_decode_workers_do_all() -> None:
    async with split() as told:
        await told.prefills[0].stop()
        for _ in range(3):
            await told.same()
        await told.is_clean()


# failures --------------------------------------------------------------------------------------


PREFILL_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"refuse_prefill": {"probability": 1.0}}, "error"),
    "reset": ({"connections": "reset"}, "died"),
    "hangs": ({"hang": True}, "timeout"),
    "without parameters": ({"omit_params": {"probability": 1.0}}, "refused"),
    "gone before the pull": ({"drop_pinned": True}, "transfer"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", PREFILL_FAULTS)
async def test_a_prefill_that_fails_is_not_seen(fault: str, stream: bool) -> None:
    faults, cause = PREFILL_FAULTS[fault]
    async with split(config={"disaggregation_prefill_timeout_s": 0.5}) as told:
        await told.sim(told.prefills[0], **faults)
        await told.same(stream=stream)
        await told.same("/v1/chat/completions", **CHAT, stream=stream)
        assert set(told.failures) == {cause}, told.failures
        await told.is_clean()
        await told.sim(told.prefills[0])
        num = told.plans.get("prefill_decode", 0)
        await until(lambda: told.gateway.fleet.is_ready("m"))
        await told.same(stream=stream, prompt=PROMPT[::-1])
        assert told.plans["prefill_decode"] == num + 1 or cause in ("timeout", "died")
        await told.is_clean()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
async def test_a_prefill_process_that_is_killed_before_the_pull_is_not_seen(policy: str) -> None:
    async with split(decodes=2, kv_load_failure=policy) as told:
        await told.sim(told.prefills[0], drop_pinned=True)
        answers = await asyncio.gather(*[told.ask(prompt=[i, *PROMPT]) for i in range(20)])
        assert {status for status, _ in answers} == {200}
        assert set(told.failures) == ({"transfer"} if policy == "fail" else set())
        await told.is_clean()


async def test_decode_workers_that_fail_cost_a_fresh_prefill() -> None:
    async with split(decodes=2, config={"max_attempts": 4}) as told:
        await told.sim(told.decodes[0], connections="reset")
        for number in range(6):
            await told.same(prompt=[number, *PROMPT], stream=number % 2 == 0)
        await told.is_clean()


async def test_another_prefill_worker_takes_over() -> None:
    async with split(prefills=2) as told:
        await told.sim(told.prefills[0], refuse_prefill={"probability": 1.0})
        for number in range(8):
            await told.same(prompt=[number, *PROMPT])
        assert told.plans == {"prefill_decode": 8 + told.failures.get("error", 0)}
        await told.is_clean()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["drop_pinned", "hang_transfer"])
async def test_who_answers_nothing_alone_gets_another_prefill_worker(fault: str, stream: bool) -> None:
    """One's transfers fail: as long as another one is there, its pairs answer."""
    config = PROTOCOLS["sglang"]
    async with split(prefills=2, config=config, pd_protocol="sglang", lease_s=1.0) as told:
        await told.sim(told.prefills[0], **{fault: True})
        await asyncio.gather(*[told.same(prompt=[i, *PROMPT], stream=stream) for i in range(6)])
        assert told.failures and set(told.plans) == {"prefill_decode"}
        await told.is_clean()


async def test_a_client_that_leaves_during_prefill_leaves_nothing_pinned() -> None:
    async with split(prefill_tokens_per_s=2000.0) as told:
        asked = asyncio.gather(told.ask(prompt=PROMPT * 3))
        await until(lambda: told.booked() == 2)
        asked.cancel()
        await told.is_clean()
        assert await told.pinned(told.prefills[0]) == 0


async def test_a_client_that_leaves_during_decode_ends_it() -> None:
    async with split(decode_tokens_per_s=50.0) as told:
        asked = asyncio.gather(told.ask(max_tokens=400))
        await until(lambda: any(told.holds(decode, PROMPT) for decode in told.decodes))
        asked.cancel()
        await told.is_clean()
        assert await told.pinned(told.prefills[0]) == 0


async def test_a_prompt_that_differs_is_an_alarm_and_not_handed_on(caplog: pytest.LogCaptureFixture) -> None:
    async with split() as told:
        await told.sim(told.prefills[0], extra_prompt_tokens=3)
        await told.same()
        assert "make different prompts of one request" in caplog.text
        await told.same(stream=True)
        assert told.gateway.splits.num_mismatches == 1
        assert told.failures == {"mismatch": 1}
        assert told.plans == {"prefill_decode": 1, "direct": 1}
        await told.is_clean()


async def test_a_prefill_worker_with_another_chat_template_is_no_pair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Known before a request finds out."""
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(bundled_tokenizer(), tokenizer)
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config["chat_template"] = "Be brief. " + config["chat_template"]
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    async with split() as told:
        other = await Sim(SimConfig(port=0, pd_role="prefill", tokenizer=tokenizer, **FAST)).start()
        try:
            policy, (decode,) = told.gateway.splits.policy, told.decodes
            name = WorkerId(decode.url.removeprefix("http://"))
            told.gateway.roster.add(other.url, Role.PREFILL)
            await until(lambda: bool(policy.banned_with(name)))
            assert list(policy.banned_with(name)) == [other.url.removeprefix("http://")]
            assert "in a chat with tools they differ from token number" in caplog.text
            for number in range(4):
                await told.same("/v1/chat/completions", **CHAT, seed=number)
            assert told.plans == {"prefill_decode": 4}
            assert told.failures == {}
        finally:
            await other.stop()


async def test_a_gateway_that_counts_otherwise_learns_so(caplog: pytest.LogCaptureFixture) -> None:
    async with split() as told:
        for sim in (*told.prefills, *told.decodes):
            await told.sim(sim, extra_prompt_tokens=3)
        for number in range(3):
            assert (await told.ask(prompt=[number, *PROMPT]))[0] == 200
        assert "make the same prompts after all" in caplog.text
        assert told.failures == {"mismatch": 1}
        assert told.plans == {"prefill_decode": 3}
        await told.is_clean()


# bad input -------------------------------------------------------------------------------------


async def test_a_clients_own_transfer_parameters_go_nowhere() -> None:
    steering = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.9"},
        "bootstrap_host": "x",
    }
    async with split(mode="never") as told:
        await told.same(**steering)
    async with split(mode="always") as told:
        await told.same(**steering)
        assert told.plans == {"prefill_decode": 1}


async def test_a_client_may_split_by_itself_where_that_is_allowed() -> None:
    async with split(config={"allow_transfer_fields": True}) as told:
        ask = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        status, answer = await told.ask(max_tokens=1, **ask)
        assert (status, told.plans) == (200, {})
        assert answer["kv_transfer_params"]["remote_block_ids"]


async def test_a_decode_worker_that_is_given_as_prefill_does_not_join(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with split() as told:
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
        assert told.failures == {}
