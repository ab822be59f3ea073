"""A worker's `/tokenize` asked for the probes."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.parity.comparison import ParityComparison, ParityResult
from gateway.parity.prober import MAX_AT_ONCE, Prober, compare, made_by
from gateway.parity.probes import MUST_ANSWER, PAIR_PROBES, PROBES


def ours(request: InferenceRequest) -> Prompt:
    """Bytes of the body as tokens: no two prompts have the same."""
    field = "messages" if request.kind is RouteKind.CHAT else "prompt"
    return Prompt((tokens_of(list(msgspec.json.encode(request.fields[field]))),), "fake")


class Worker:
    """Worker that tokenizes as we do, except for one token, from probe number `wrong` on."""

    def __init__(self, wrong: int = 100, answer: bytes | None = None) -> None:
        self.wrong, self.answer = wrong, answer
        self.asked: list[Any] = []

    async def ask(self, path: str, body: Any) -> bytes | None:
        assert path == "/tokenize"
        self.asked.append(body)
        if self.answer is not None:
            return self.answer or None
        tokens = list(msgspec.json.encode(body.get("messages") or body["prompt"]))
        if len(self.asked) > self.wrong:
            tokens[7] = 0
        return msgspec.json.encode({"tokens": tokens, "count": len(tokens)})


def comparison() -> ParityComparison:
    return ParityComparison("m", ours, lambda model, ids: f"text of {len(ids)}")


async def test_all_probes_are_asked_of_a_worker_with_equal_tokens() -> None:
    worker = Worker()
    result = await compare(worker.ask, comparison())
    assert (result.num_compared, result.difference) == (len(PROBES), None)
    assert len(worker.asked) == len(PROBES)
    assert {body["model"] for body in worker.asked} == {"m"}
    assert any(body.get("tools") for body in worker.asked)


@pytest.mark.parametrize("wrong", range(len(PROBES)))
async def test_the_first_differing_token_is_named(wrong: int) -> None:
    words = (await compare(Worker(wrong).ask, comparison())).difference
    assert words is not None
    assert f"in {PROBES[wrong].name} from token 7 on" in words
    assert "here and [0, " in words
    assert "'text of 4'" in words


@pytest.mark.parametrize("answer", [b"", b"no json", b'{"tokens":[]}', b'{"error":"no messages here"}'])
async def test_a_worker_without_tokenize_gets_two_probes_and_is_not_wrong(answer: bytes) -> None:
    worker = Worker(answer=answer)
    assert await compare(worker.ask, comparison()) == ParityResult({})
    assert len(worker.asked) == MUST_ANSWER
    assert await made_by("m", worker.ask) == {}


async def test_a_pair_is_asked_for_a_text_and_a_chat() -> None:
    worker = Worker()
    assert [*await made_by("m", worker.ask)] == [probe.name for probe in PAIR_PROBES]
    assert len(worker.asked) == len(PAIR_PROBES)


async def test_many_workers_are_asked_a_few_at_a_time() -> None:
    num_open = most_open = 0

    async def post(url: str, path: str, body: object) -> bytes:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        await asyncio.sleep(0)
        num_open -= 1
        return b'{"tokens":[1]}'

    prober = Prober(post)
    urls = [f"http://w:{number}" for number in range(3 * MAX_AT_ONCE)]
    await asyncio.gather(
        *(prober.made_by(url, "m") for url in urls), *(prober.compare(url, comparison()) for url in urls)
    )
    assert most_open == MAX_AT_ONCE


async def test_the_time_of_each_answer_is_reported_with_the_size_of_its_body() -> None:
    worker, times, answered = Worker(), iter(range(1000)), list[tuple[str, float, int]]()

    async def post(url: str, path: str, body: Any) -> bytes | None:
        return await worker.ask(path, body)

    def on_answered(url: str, took_s: float, num_bytes: int) -> None:
        answered.append((url, took_s, num_bytes))

    prober = Prober(post, on_answered, lambda: float(next(times)))
    await prober.compare("http://w:1", comparison())
    assert answered == [("http://w:1", 1.0, len(msgspec.json.encode(body))) for body in worker.asked]
    worker.answer = b""
    await prober.made_by("http://w:1", "m")
    assert len(answered) == len(PROBES)  # no answer, no time
