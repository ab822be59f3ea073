"""Our tokens of the probe prompts beside a worker's."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.models.token_parity import (
    PAIR_PROBES,
    PROBES,
    ParityCheck,
    first_difference,
    made_by,
    parity_difference,
)


def ours(request: InferenceRequest) -> list[int]:
    """Bytes of the body: no two prompts have the same."""
    field = "messages" if request.kind is Kind.CHAT else "prompt"
    return list(msgspec.json.encode(request.fields[field]))


class Worker:
    """Tokenizes as we do, but for one of the tokens, from the probe number `wrong` on."""

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


def parity_check() -> ParityCheck:
    def text(model: str, ids: Sequence[int]) -> str:
        assert model == "m"
        return f"text of {len(ids)}"

    return ParityCheck(lambda request: Prompt((tokens_of(ours(request)),), "fake"), text)


async def test_all_probes_are_asked_of_a_worker_that_agrees() -> None:
    worker = Worker()
    assert await parity_check().differs("m", worker.ask) is None
    assert len(worker.asked) == len(PROBES)
    assert {body["model"] for body in worker.asked} == {"m"}
    assert any(body.get("tools") for body in worker.asked)


@pytest.mark.parametrize("wrong", range(len(PROBES)))
async def test_the_first_token_that_differs_is_named(wrong: int) -> None:
    words = await parity_check().differs("m", Worker(wrong).ask)
    assert words is not None
    assert f"in {PROBES[wrong][0]} from token 7 on" in words
    assert "here and [0, " in words
    assert "'text of 4'" in words


@pytest.mark.parametrize("answer", [b"", b"no json", b'{"tokens":[]}', b'{"error":"no messages here"}'])
async def test_a_worker_that_does_not_tokenize_is_not_wrong(answer: bytes) -> None:
    assert await parity_check().differs("m", Worker(answer=answer).ask) is None


async def test_what_we_cannot_tokenize_is_not_compared() -> None:
    blind = ParityCheck(lambda request: Prompt((), "failed"), lambda model, ids: None)
    assert await blind.differs("m", Worker(0).ask) is None


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == at


async def test_two_workers_are_compared_in_what_both_answer() -> None:
    ours, theirs = await made_by("m", Worker().ask), await made_by("m", Worker(wrong=1).ask)
    assert [*ours] == [*theirs] == [name for name, _, _ in PAIR_PROBES]
    assert parity_difference(ours, ours) is None
    words = parity_difference(ours, theirs)
    assert words and words.startswith("in a chat with tools they differ from token number 7 on, [")
    text, chat = (name for name, _, _ in PAIR_PROBES)
    assert parity_difference(ours, {text: theirs[text]}) is None
    assert parity_difference(ours, {chat: theirs[chat]}) == words
    assert parity_difference({}, theirs) is None
    assert await made_by("m", Worker(answer=b"{}").ask) == {}
