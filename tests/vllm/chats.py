"""Chats with a gateway before two real servers of vLLM."""

import json
import random
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience
from tests.vllm.engine import VllmWorker
from tests.vllm.sdk import client

WORDS = ["river", "stone", "cloud", "winter", "garden", "copper", "signal", "harbor", "meadow", "orbit"]
BLOCK = 32
Pair = tuple[VllmWorker, VllmWorker]


def started(pair: Sequence[VllmWorker], model: Path, *flags: str) -> GatewayProcess:
    workers = [flag for worker in pair for flag in ("--worker", worker.url)]
    return GatewayProcess(*workers, "--tokenizer", str(model), "--expose-headers", *flags)


def text(seed: str, num_words: int = 120) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


class Answer:
    """An answer with its worker, the predicted tokens and the cached tokens that the engine reports."""

    def __init__(self, raw: Any) -> None:
        self.answer = raw.parse()
        self.worker = raw.headers["x-kvgate-worker"]
        self.decision = raw.headers["x-kvgate-decision"]
        self.predicted = int(raw.headers["x-kvgate-overlap-tokens"])
        self.cached = self.answer.usage.prompt_tokens_details.cached_tokens
        self.text = self.answer.choices[0].message.content


def chat(gateway: GatewayProcess, messages: list[Any], **extra: Any) -> Answer:
    raw = client(gateway.url).chat.completions.with_raw_response.create(
        model="m", messages=messages, max_tokens=8, temperature=0, **extra
    )
    return Answer(raw)


def settle(gateway: GatewayProcess) -> None:
    """Wait until assumed blocks have expired, so that predictions come from events alone."""
    wait_until(lambda: all(w["assumed_blocks"] == 0 for w in index(gateway)), 10)


def index(gateway: GatewayProcess) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = gateway.admin("/admin/index")["workers"]
    # A lookup expires assumed blocks that are due; a request with a tiny prompt is the cheapest one.
    post(gateway.url, "/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 1})
    return workers


def post(url: str, path: str, body: object) -> dict[str, Any]:
    data = json.dumps(body).encode()
    ask = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        ask, timeout=patience(120)
    ) as answer:
        completion: dict[str, Any] = json.load(answer)
        return completion
