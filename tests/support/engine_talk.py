"""Requests through a gateway to a real server, with the gateway's prediction beside the engine's count."""

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.sglang.engine import SglangWorker
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

WORDS = ["river", "stone", "cloud", "winter", "garden", "copper", "signal", "harbor", "meadow", "orbit"]
EXACT_TIMEOUT_S = 60.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class TalkAnswer:
    """An answer: its text, the worker, the tokens that were predicted to be cached, and those that the engine
    reports."""

    status: int
    body: dict[str, Any]
    predicted: int = 0
    worker: str = ""
    decision: str = ""

    @property
    def cached(self) -> int:
        if meta := self.body.get("meta_info"):
            return int(meta["cached_tokens"])
        usage = self.body["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        return int(details.get("cached_tokens", usage.get("cache_read_input_tokens", 0)))

    @property
    def text(self) -> str:
        first = self.body["choices"][0]
        return str(first["text"] if "text" in first else first["message"]["content"])


@contextmanager
def gateway_of(*workers: SglangWorker, flags: tuple[str, ...] = ()) -> Iterator[GatewayProcess]:
    """A gateway before these workers that knows their caches exactly.

    The gateway tokenizes, by SGLang's own rules of rendering.
    """
    given = [flag for worker in workers for flag in ("--worker", worker.url)]
    given += ["--tokenizer", str(workers[0].model), "--expose-headers"]
    with GatewayProcess(*given, *flags) as gateway:
        is_exact(gateway, sum(worker.options.num_ranks for worker in workers))
        yield gateway


def is_exact(gateway: GatewayProcess, num_workers: int = 1) -> None:
    wait_until(lambda: gateway.streams() == ["exact"] * num_workers, EXACT_TIMEOUT_S)


def ask(gateway: GatewayProcess, path: str, body: dict[str, Any], **headers: str) -> TalkAnswer:
    """Post a greedy request once the index alone knows the cache."""
    settle(gateway)
    return post(gateway, path, {"model": "m", "temperature": 0} | body, **headers)


def complete(gateway: GatewayProcess, prompt: str | list[int], **fields: Any) -> TalkAnswer:
    return ask(gateway, "/v1/completions", {"prompt": prompt, "max_tokens": 4} | fields)


def chat(gateway: GatewayProcess, *texts: str, **fields: Any) -> TalkAnswer:
    """A chat of these texts: user, assistant, user, …"""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": each} for i, each in enumerate(texts)]
    return ask(gateway, "/v1/chat/completions", {"messages": messages, "max_tokens": 4} | fields)


def settle(gateway: GatewayProcess) -> None:
    """Wait until the events of past requests are in, and blocks that were only assumed are gone."""

    def is_settled() -> bool:
        if all(worker["assumed_blocks"] == 0 for worker in gateway.admin("/admin/index")["workers"]):
            return True
        post(
            gateway, "/v1/completions", {"model": "m", "prompt": [1], "max_tokens": 1}
        )  # its lookup expires them
        return False

    wait_until(is_settled, 20)


def post(gateway: GatewayProcess, path: str, body: dict[str, Any], **headers: str) -> TalkAnswer:
    request = urllib.request.Request(gateway.url + path, json.dumps(body).encode())
    for name, value in {"content-type": "application/json", **headers}.items():
        request.add_header(name, value)
    try:
        with _direct.open(request, timeout=patience(120)) as answer:
            predicted = int(answer.headers.get("x-kvgate-overlap-tokens") or 0)
            names = [answer.headers.get(f"x-kvgate-{name}") or "" for name in ("worker", "decision")]
            return TalkAnswer(answer.status, json.load(answer), predicted, *names)
    except urllib.error.HTTPError as exc:
        with exc:
            return TalkAnswer(exc.code, json.load(exc))


def text(seed: object, num_words: int = 80) -> str:
    rng = random.Random(str(seed))
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def ids(seed: object, num: int = 200) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(100, 8000) for _ in range(num)]


PROVEN = "tenants' caches are kept apart (32 tokens cached under their own salt, none under another)"
