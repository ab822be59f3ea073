"""Proofs by prompts; `test_check.py` has the verdicts that follow."""

from typing import Any

import msgspec
import pytest

from gateway.commands.check_prompts import KindProof, prove
from tests.support.fakes import worker


@pytest.mark.parametrize(
    ("proof", "obstacle", "fault"),
    [
        (KindProof("chats", False, 0), "no tokenizer is given", None),
        (KindProof("chats", True, 0), "the tokenizer of its model renders no chats", None),
        (KindProof("chats", False, 0, is_answered=False), None, None),  # it serves none
        (KindProof("chats", False, 9), None, None),
        (KindProof("chats", False, 9, True, 9, 8), None, None),
        (KindProof("chats", False, 9, True, 0, None), None, None),  # it counts none
        (KindProof("texts", True, 9, True, 8, 8), None, "texts: kvgate has 9 tokens"),
        (KindProof("chats", False, 0, True, 8, 8), "no tokenizer is given", None),
    ],
)
def test_a_proof_shows_what_is_blind_and_what_differs(
    proof: KindProof, obstacle: str | None, fault: str | None
) -> None:
    assert (proof.obstacle or "").startswith(obstacle or "") and bool(proof.obstacle) is bool(obstacle)
    assert (proof.fault or "").startswith(fault or "") and bool(proof.fault) is bool(fault)


async def test_a_prompt_of_each_kind_is_sent_twice_and_tokenized_once() -> None:
    for kind, path, field in (
        ("texts", "/v1/completions", "prompt"),
        ("chats", "/v1/chat/completions", "messages"),
    ):
        asked: list[tuple[str, Any]] = []

        async def post(to: str, body: object, asked: list[tuple[str, Any]] = asked) -> bytes:
            asked.append((to, body))
            usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
            return msgspec.json.encode({"tokens": [1, 2, 3]} if to == "/tokenize" else {"usage": usage})

        found = await prove(worker(), kind, post, None, sends=True)
        assert found == KindProof(kind, False, 3, True, 3, 2)
        assert [to for to, _ in asked] == ["/tokenize", path, path]
        assert all(field in body for _, body in asked)


async def test_a_tokenizer_here_needs_no_worker() -> None:
    async def post(to: str, body: object) -> bytes:
        raise AssertionError(to)

    found = await prove(worker(), "chats", post, lambda request: [1, 2], sends=False)
    assert found == KindProof("chats", True, 2)
