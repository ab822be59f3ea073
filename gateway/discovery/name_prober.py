"""Name prober: asks an endpoint that lists several models for one that does not exist, before it joins.

An engine that answers such a request answers for any name, always from the model that it has (llama.cpp,
SGLang). Of the names in its list only that model's are then used. Engines that load the model a request names
(`loads_by_name`) are not asked: a made-up name would unload the model that serves.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.eligibility import Eligibility, NameProof
from gateway.core.engine import ModelInfo
from gateway.discovery.probed import Facts

PATH = "/v1/completions"

Post = Callable[[str, str, object], Awaitable[bytes | None]]
"""Posts a body to a path of an endpoint; returns None unless the status is 200."""


class _Completion(msgspec.Struct):
    choices: list[msgspec.Raw]
    model: str | None = None


_decode = msgspec.json.Decoder(_Completion).decode


class NameProber:
    """Keeps `answers_any` of `eligibility`."""

    def __init__(self, eligibility: Eligibility, post: Post, rng: random.Random | None = None) -> None:
        self._eligibility = eligibility
        self._post = post
        self._rng = rng or random.Random()

    def __repr__(self) -> str:
        return f"NameProber({len(self._eligibility.answers_any)} endpoints answer for any name)"

    async def prove(self, facts: Facts) -> bool:
        """Find out whether an endpoint answers for any name. Returns True if that changed."""
        bases = base_models(facts)
        if len({root_of(model) for model in bases}) < 2 or self._eligibility.loads_by_name(facts.engine):
            return self.drop(facts.url)
        answer = await self._post(facts.url, PATH, request_of(self._rng))
        proof = verdict_of(answer, bases)
        if proof is None:
            return self.drop(facts.url)
        before = self._eligibility.answers_any.get(facts.url)
        self._eligibility.answers_any[facts.url] = proof
        return proof != before

    def drop(self, url: str) -> bool:
        """Forget an endpoint. Returns True if it answered for any name."""
        return self._eligibility.answers_any.pop(url, None) is not None


def base_models(facts: Facts) -> list[ModelInfo]:
    return [model for model in facts.models if not model.parent]


def root_of(model: ModelInfo) -> str:
    return model.root or model.id


def request_of(rng: random.Random) -> dict[str, Any]:
    """The body to send: a text of a token or two, for a model that exists nowhere."""
    return {"model": f"kvgate-no-model-{rng.getrandbits(64):016x}", "prompt": "a", "max_tokens": 1}


def verdict_of(answer: bytes | None, bases: Sequence[ModelInfo]) -> NameProof | None:
    """The proof that an answer to `request_of` gives; None where the engine refused the name, or failed.

    The answer's own `model` names the model that answers, where it is a listed one; some engines repeat what
    was asked for, then it is the first in the list.
    """
    try:
        found = _decode(answer or b"")
    except UNREADABLE:
        return None
    if not found.choices:
        return None
    named = next((model for model in bases if model.id == found.model), bases[0])
    return NameProof(root_of(named), f"it answers for any model name, from '{named.id}'")
