"""SDKs' reactions to the gateway's errors: they retry only harmless requests."""

import pytest

from loadtest import sdks
from tests.support.blackbox.bench import Bench
from tests.support.blackbox.scripted_worker import Call


async def dies(call: Call) -> None:
    call.reset()


def of_openai(bench: Bench) -> "sdks.openai.AsyncOpenAI":
    url = f"http://127.0.0.1:{bench.gateway.port}/v1"
    return sdks.openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=1)


def of_anthropic(bench: Bench) -> "sdks.anthropic.AsyncAnthropic":
    url = f"http://127.0.0.1:{bench.gateway.port}"
    return sdks.anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=1)


async def test_a_request_lost_by_a_worker_is_retried(bench: Bench) -> None:
    worker = await bench.worker(script=dies)
    async with of_openai(bench) as client:
        with pytest.raises(sdks.openai.APIStatusError) as lost:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert (lost.value.status_code, len(worker.calls)) == (502, 2)
    async with of_anthropic(bench) as claude:
        with pytest.raises(sdks.anthropic.APIStatusError):
            await claude.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )
    assert len(worker.calls) == 4


async def test_a_request_that_may_have_been_stored_is_not_retried(bench: Bench) -> None:
    worker = await bench.worker(script=dies)
    async with of_openai(bench) as client:
        with pytest.raises(sdks.openai.APIStatusError) as lost:
            await client.responses.create(model="m", input="hi", store=True)
    assert (lost.value.status_code, len(worker.calls)) == (502, 1)


async def test_a_request_that_would_fail_again_is_not_retried(bench: Bench) -> None:
    await bench.worker()
    before = await bench.gateway.total("kvgate_responses_total")
    async with of_openai(bench) as client:
        with pytest.raises(sdks.openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(sdks.openai.NotFoundError):
            await client.responses.retrieve("resp_1")
        with pytest.raises(sdks.openai.PermissionDeniedError):
            await client.post("/load_lora_adapter", cast_to=object, body={"lora_name": "x"})
    assert await bench.gateway.total("kvgate_responses_total") == before + 3


async def test_a_request_without_a_worker_is_retried(bench: Bench) -> None:
    before = await bench.gateway.total("kvgate_responses_total")
    async with of_anthropic(bench) as claude:
        with pytest.raises(sdks.anthropic.APIStatusError) as lost:
            await claude.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )
    assert lost.value.status_code == 503
    assert await bench.gateway.total("kvgate_responses_total") == before + 2
