"""Requests through a gateway to real engines without KV events, beside the engine's own cached tokens."""

import json
import random
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

WORDS = ["river", "stone", "cloud", "winter", "garden", "copper", "signal", "harbor", "meadow", "orbit"]
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer: the worker that gave it, the tokens predicted to be cached, and the engine's own count."""

    status: int
    body: dict[str, Any]
    worker: str = ""
    predicted: int = 0

    @property
    def cached(self) -> int:
        return int(self.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    @property
    def text(self) -> str:
        first = self.body["choices"][0]
        return str(first["text"] if "text" in first else first["message"]["content"])

    @property
    def num_answered(self) -> int:
        """Tokens of the answer."""
        return int(self.body["usage"]["completion_tokens"])

    @property
    def error(self) -> str:
        return str(self.body["error"]["message"])


def complete(gateway: GatewayProcess, model: str, prompt: object, **fields: Any) -> PlainAnswer:
    """Post a greedy completion of four tokens."""
    return _post(gateway, "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 4} | fields)


def chat(gateway: GatewayProcess, model: str, messages: object, **fields: Any) -> PlainAnswer:
    """Post a greedy chat with an answer of 64 tokens."""
    fields = {"model": model, "messages": messages, "max_tokens": 64} | fields
    return _post(gateway, "/v1/chat/completions", fields)


def _post(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> PlainAnswer:
    request = urllib.request.Request(gateway.url + path, json.dumps({"temperature": 0} | body).encode())
    request.add_header("content-type", "application/json")
    try:
        with _direct.open(request, timeout=patience(120)) as answer:
            worker = answer.headers["x-kvgate-worker"]
            predicted = int(answer.headers["x-kvgate-overlap-tokens"])
            return PlainAnswer(answer.status, json.load(answer), worker, predicted)
    except urllib.error.HTTPError as exc:
        with exc:
            return PlainAnswer(exc.code, json.load(exc))


@dataclass(frozen=True, slots=True)
class Verified:
    """Predictions that a gateway has compared with the engines' counts, those that were wrong, and answers
    with more cached than it can know."""

    num_compared: int
    num_wrong: int
    num_unknown: int


def verified(gateway: GatewayProcess) -> Verified:
    workers = gateway.admin("/admin/verify")["workers"]
    num_wrong = sum(sum(worker["mispredictions"].values()) for worker in workers)
    num_compared, num_unknown = (sum(worker[name] for worker in workers) for name in ("compared", "unknown"))
    return Verified(num_compared, num_wrong, num_unknown)


def text(seed: object, num_words: int = 80) -> str:
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def converse(
    gateway: GatewayProcess, model: str, num: int = 10, num_turns: int = 5
) -> list[list[PlainAnswer]]:
    """Conversations in turns, interleaved at random; each turn's prompt begins with all that was said."""
    rng = random.Random("conversations")
    said = [text(f"conversation {i}", 60) for i in range(num)]
    answers: list[list[PlainAnswer]] = [[] for _ in range(num)]
    turns = [i for i in range(num) for _ in range(num_turns)]
    rng.shuffle(turns)
    for i in turns:
        answer = complete(gateway, model, said[i])
        answers[i].append(answer)
        said[i] += answer.text + " " + text(f"more {i} {len(answers[i])}", 30)
    return answers


def converse_in_chats(
    gateway: GatewayProcess, model: str, num: int = 6, num_turns: int = 4
) -> list[list[PlainAnswer]]:
    """Chats in turns, interleaved at random; each turn repeats the answers before, of 64 tokens each."""
    rng = random.Random("chats")
    said = [[{"role": "user", "content": text(f"chat {i}", 60)}] for i in range(num)]
    answers: list[list[PlainAnswer]] = [[] for _ in range(num)]
    turns = [i for i in range(num) for _ in range(num_turns)]
    rng.shuffle(turns)
    for i in turns:
        answer = chat(gateway, model, said[i])
        answers[i].append(answer)
        said[i].append({"role": "assistant", "content": answer.text})
        said[i].append({"role": "user", "content": text(f"next {i} {len(answers[i])}", 30)})
    return answers


def explained(before: PlainAnswer, turn: PlainAnswer, block: int) -> bool:
    """True if a turn had cached what was predicted, to a block, and beyond that no more than the answer
    before it and the blocks at its ends."""
    surplus = turn.cached - turn.predicted
    return -block < surplus < before.num_answered + 2 * block
