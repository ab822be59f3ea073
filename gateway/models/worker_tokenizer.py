"""Client of workers' own `/tokenize`, for prompts of models without a tokenizer here."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
from xxhash import xxh3_128_digest

from gateway.core.blocks import Tokens
from gateway.core.decision import Prompt
from gateway.core.decode_errors import UNREADABLE
from gateway.core.json_values import encode
from gateway.core.multimodal import BEFORE_MEDIA, first_medium
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.models.breaker import CircuitBreaker
from gateway.models.late_calls import LateCalls
from gateway.models.prompt_source import MAX_ASKED_BYTES
from gateway.models.tokenize_budget import TokenizeBudget
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tls import Tls
from gateway.runtime.work_slices import in_slices
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.worker_tokens import STEP_BYTES, read_tokens_in_steps, tokenize_bodies
from gateway.upstream.access import FleetAccess
from gateway.upstream.control_client import MAX_ANSWER_BYTES, ControlSession, read_all

log = logging.getLogger("kvgate.prompts")

MAX_FRAME_TOKENS: Final = 4096
"""Tokens that a worker's template may add to a prompt, beside one for each byte of it."""
ID_BYTES: Final = 12
"""Bytes of a token's id in an answer, at most: ten digits, a comma and a space."""
CACHE_ENTRY_BYTES: Final = 300
"""Bytes of memory that a cached answer takes beside its tokens, about."""
QUARTER_S: Final = 900
"""Seconds between two midnights of the world's zones."""


class WorkerTokenizer:
    """Client of workers' own `/tokenize`, with a deadline; answers are cached by the bytes of the request
    body. A worker that fails repeatedly is not called for a while (`models/breaker.py`).

    `timeout_s` bounds the delay of a request's routing, however many prompts it has; within it a worker gets
    the time that it usually takes (`models/tokenize_budget.py`), and a late call goes on. `max_cache_bytes`
    bounds the cached tokens. `counts` are of calls by outcome. Tokens of chats are known until the next
    quarter of an hour: some templates print the day, and somewhere it ends then.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        max_cache_bytes: int = 64 << 20,
        tls: Tls | None = None,
        access: FleetAccess | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock, self._wall = clock, wall
        self._log = RateLimitedLog(log, clock=clock)
        self._session = ControlSession(tls, access=access)  # `ask` keeps the time
        self._cache: OrderedDict[bytes, Tokens] = OrderedDict()
        self._max_bytes = max_cache_bytes
        self._num_bytes = 0
        self._calls = LateCalls(timeout_s)
        self._breakers: dict[str, CircuitBreaker] = {}
        self._budgets: dict[str, TokenizeBudget] = {}
        self.counts: Counter[str] = Counter()

    def is_resting(self, url: str) -> bool:
        breaker = self._breakers.get(url)
        return breaker is not None and breaker.is_open(self._clock())

    async def ask(
        self,
        url: str,
        request: InferenceRequest,
        authorization: str | None,
        model: str | None = None,
        rendering: Rendering = VLLM,
        max_tokens: int = 0,
    ) -> Prompt:
        """Tokenize by a worker of a rendering. Raises PromptError if it does not answer in time, or without
        tokens, or with more than `max_tokens`, the model's limit (0 if unknown), or is resting. `model` is
        the name that the worker serves, if the request has another one."""
        if request.is_crowded or len(request.body) > MAX_ASKED_BYTES:
            raise PromptError(
                f"a body of more than {MAX_ASKED_BYTES >> 20} MiB is not sent to a worker's /tokenize"
            )
        bodies = tokenize_bodies(request, model, rendering)
        budget = self._budget(url)
        deadline_s = self._loop_s() + budget.seconds(len(request.body), len(bodies))
        try:
            tokens = [await self._one(url, body, authorization, deadline_s) for body in bodies]
        except TimeoutError as exc:
            budget.late()
            self._failed(url, "late")
            raise PromptError("the worker's /tokenize did not answer in time") from exc
        if any(not made and body.get("prompt", body) for made, body in zip(tokens, bodies, strict=True)):
            self._failed(url, "failed")  # an engine that takes other fields
            raise PromptError("the worker's /tokenize made no tokens")
        if 0 < max_tokens < max(map(len, tokens), default=0):
            raise PromptError("the worker's /tokenize made more tokens than the model accepts")
        is_whole = request.kind is not RouteKind.CHAT or first_medium(request.fields["messages"]) is None
        return Prompt(tuple(tokens), "worker" if is_whole else BEFORE_MEDIA)

    def forget(self, url: str | None = None) -> None:
        """Clear the cache: workers may make other tokens than before; `url` is a worker that left or
        joined."""
        self._calls.cancel()
        self._cache.clear()
        self._num_bytes = 0
        if url is not None:
            self._breakers.pop(url, None)
            self._budgets.pop(url, None)

    def describe(self) -> dict[str, Any]:
        calls = [{"name": outcome, "calls": num} for outcome, num in sorted(self.counts.items())]
        resting = [url for url in self._breakers if self.is_resting(url)]
        budgets = [{"url": url, "wait_s": each.seconds(0)} for url, each in self._budgets.items()]
        sizes = {"entries": len(self._cache), "bytes": self._num_bytes, "max_bytes": self._max_bytes}
        return {**sizes, "calls": calls, "budgets": budgets, "paused": resting}

    async def close(self) -> None:
        self._calls.cancel()
        await self._session.close()

    def learn(self, url: str, took_s: float, num_bytes: int) -> None:
        """Learn how long a worker took for another body of so many bytes: a probe of it."""
        self._budget(url).answered(took_s, num_bytes)

    async def _one(
        self, url: str, body: Mapping[str, Any], authorization: str | None, deadline_s: float
    ) -> Tokens:
        raw = encode(body)
        is_chat = "messages" in body
        key = xxh3_128_digest(raw, seed=int(self._wall() // QUARTER_S) if is_chat else 0)
        if (tokens := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            self.counts["cached"] += 1
            return tokens
        if not self._breaker(url).may_ask(self._clock()):
            self.counts["not_called"] += 1
            raise PromptError("the worker's /tokenize failed too often and is not called for a while")
        fetched = self._fetched(url, raw, key, authorization)
        return await self._calls.run(fetched, deadline_s - self._loop_s())

    async def _fetched(self, url: str, raw: bytes, key: bytes, authorization: str | None) -> Tokens:
        """Tokens of a body by its worker, remembered; the time that it took is learnt, however late it is."""
        began = self._clock()
        tokens = await self._post(url, raw, authorization)
        self._breaker(url).answered()
        self._budget(url).answered(self._clock() - began, len(raw))
        self.counts["answered"] += 1
        if key not in self._cache:  # else another request was faster
            self._cache[key] = tokens
            self._num_bytes += _cached_bytes(tokens)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _cached_bytes(self._cache.popitem(last=False)[1])
        return tokens

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _breaker(self, url: str) -> CircuitBreaker:
        return self._breakers.setdefault(url, CircuitBreaker())

    def _budget(self, url: str) -> TokenizeBudget:
        return self._budgets.setdefault(url, TokenizeBudget(self._timeout_s))

    def _failed(self, url: str, how: str) -> None:
        self.counts[how] += 1
        if self._breaker(url).failed(self._clock()):
            self._log.warning("worker %s: /tokenize failed repeatedly (%s); not called for a while", url, how)

    def _refused(self, url: str, status: int) -> None:
        """Count an error status: one that blames the request, or its key, is no failure of the worker."""
        if status >= 500 or status == 404:
            self._failed(url, "failed")
        else:
            self._breaker(url).answered()
            self.counts["rejected"] += 1

    async def _post(self, url: str, raw: bytes, authorization: str | None) -> Tokens:
        headers = {"content-type": "application/json"}
        if authorization:
            headers["authorization"] = authorization
        try:
            async with self._session.call("POST", url, "/tokenize", data=raw, headers=headers) as answer:
                if answer.status != 200:
                    self._refused(url, answer.status)
                    raise PromptError(f"the worker's /tokenize answered {answer.status}")
                most = len(raw) + MAX_FRAME_TOKENS  # a token has a byte at least
                body = await read_all(answer, min(ID_BYTES * most + STEP_BYTES, MAX_ANSWER_BYTES))
                tokens = await in_slices(read_tokens_in_steps(body))
                if len(tokens) > most:
                    raise ValueError(f"{len(tokens):,} tokens of {len(raw):,} bytes")
                return tokens
        except (TimeoutError, PromptError):
            raise  # `ask` catches the first; both are kinds of the exceptions below
        except (aiohttp.ClientError, OSError, *UNREADABLE) as exc:
            self._failed(url, "failed")
            raise PromptError(f"the worker's /tokenize failed: {type(exc).__name__}") from exc


def _cached_bytes(tokens: Tokens) -> int:
    return CACHE_ENTRY_BYTES + 4 * len(tokens)
