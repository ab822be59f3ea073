"""Prompt source: tokenizes a request's prompt by the model's local tokenizer, or by a worker's `/tokenize`.

A prompt that cannot be tokenized is never a reason to fail a request: it is routed by load, counted, and
logged once per model and cause.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import aiohttp
from xxhash import xxh3_128_digest

from gateway.apis.abridged import abridged
from gateway.apis.anthropic import Dialect
from gateway.apis.to_chat import as_chat, dialect_of
from gateway.core.blocks import Tokens, tokens_of
from gateway.core.decision import Prompt
from gateway.core.decode_errors import UNREADABLE
from gateway.core.multimodal import BEFORE_MEDIA, first_medium, links
from gateway.core.rendering import VLLM, Rendering
from gateway.core.requests.json_values import encode
from gateway.core.requests.request import PROMPT_FIELDS, InferenceRequest
from gateway.core.requests.routes import RouteKind
from gateway.core.token_runs import TokenRunCache
from gateway.core.value import replace
from gateway.models.breaker import CircuitBreaker
from gateway.models.late_calls import LateCalls
from gateway.models.tokenize_budget import TokenizeBudget
from gateway.observability.metrics import Metrics
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.runtime.tls import Tls
from gateway.runtime.work_slices import in_slices
from gateway.tokenization.base import Renderer
from gateway.tokenization.chat_template import MediaError, NotContinued, TooCostly, TooLong
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.worker_tokens import STEP_BYTES, read_tokens_in_steps, tokenize_bodies
from gateway.upstream.access import FleetAccess
from gateway.upstream.control_client import MAX_ANSWER_BYTES, ControlSession, read_all

log = logging.getLogger("kvgate.prompts")

MAX_INLINE_BYTES: Final = {"fastokens": 64 << 10, "tokenizers": 4 << 10}
"""Bytes of new text, by encoder, that are tokenized on the event loop: 2 ms of words never seen before. A
longer text goes to a thread, at some 0.1 ms more."""
INLINE_BYTES: Final = 4 << 10
"""Bytes of new text that any other encoder tokenizes on the event loop."""

MAX_DECODED_BYTES: Final = 16 << 20
"""Bytes of a body that is decoded whole: some 20 ms for which the decoder keeps the interpreter lock."""
ESCAPE_BYTES: Final = 6
"""An escape stands for a sixth of its bytes at least: `\\u0061`."""
MAX_TOOLS: Final = 4096
"""Tools of a prompt that is rendered: more than any agent has, and 0.1 s of a thread. A megabyte has 40,000,
and would take that thread for a second."""
MAX_PROMPTS: Final = 2048
"""Prompts of one request that are looked up, each at all workers: 4 ms of the event loop."""
MAX_ASKED_BYTES: Final = 4 << 20
"""Bytes of a body that a worker may tokenize: it costs both sides several times as much memory."""
MAX_FRAME_TOKENS: Final = 4096
"""Tokens that a worker's template may add to a prompt, beside one for each byte of it."""
ID_BYTES: Final = 12
"""Bytes of a token's id in an answer, at most: ten digits, a comma and a space."""

ANY_MODEL: Final = "*"
"""Key of a tokenizer for every model that has none of its own."""

CACHE_ENTRY_BYTES: Final = 300
"""Bytes of memory that a cached answer takes beside its tokens, about."""


class PromptSource:
    """Tokenizes requests' prompts. `local` maps model names (or ANY_MODEL) to loaded tokenizers, replaced by
    `set_all`; `runs` is their shared cache of token runs. `refuse` is called, in any thread, with a tokenizer
    that is not to be used any more and the reason."""

    def __init__(
        self, local: Mapping[str, Renderer], metrics: Metrics, clock: Callable[[], datetime] = datetime.now
    ) -> None:
        self._local: dict[str, Renderer | None] = dict(local)
        self._others: Mapping[str, Sequence[Renderer]] = {}
        self._metrics = metrics
        self._clock = clock
        self._log = RateLimitedLog(log)
        self._dialects: dict[Renderer, Dialect] = {}
        self._slow: set[Renderer] = set()
        self.refuse: Callable[[Renderer, str], None] = _ignore
        self.runs = TokenRunCache()
        for model, prompts in local.items():
            self.prepare(model, prompts)

    def prepare(self, model: str, prompts: Renderer) -> None:
        """Prepare a tokenizer for use: proofs that take a while, so run it in a thread once there is
        traffic."""
        prompts.remember(self.runs, self._clock(), partial(self._mismatched, model))

    def set_all(
        self, local: Mapping[str, Renderer | None], others: Mapping[str, Sequence[Renderer]] | None = None
    ) -> None:
        """Replace the local tokenizers by model; None for a model that is tokenized by its workers, despite
        ANY_MODEL. `others` are those of further renderings, for models that engines of several ones serve."""
        self._local, self._others = dict(local), others or {}
        used = {*local.values(), *(each for some in self._others.values() for each in some)}
        self._dialects = {each: known for each, known in self._dialects.items() if each in used}
        self._slow = {each for each in self._slow if each in used}

    def describe(self) -> dict[str, Any]:
        """Status view: encoder and templates of each model, and the size of the cache in bytes."""
        local = self._local.items()
        each = [(model, [prompts, *self._others.get(model, ())]) for model, prompts in local if prompts]
        models = [
            {"model": _name(model), "rendering": str(one.rendering), **one.describe()}
            for model, some in each
            for one in some
        ]
        return {"models": models, "conversations": self.runs.describe()}

    def has_local(self, model: str) -> bool:
        return self._find(model) is not None

    def is_local(self, request: InferenceRequest) -> bool:
        """True if `tokenize` has a result without a call to a worker."""
        if request.kind is RouteKind.PASS or self._find(request.model) is not None:
            return True
        if request.is_crowded or len(request.body) > MAX_ASKED_BYTES or _has_many_prompts(request):
            return True
        return request.kind is RouteKind.COMPLETION and bool(_id_lists(request.top))

    def max_inline_bytes(self, model: str) -> int:
        """Bytes of new text that `tokenize` may be given on the event loop; -1 for none."""
        prompts = self._find(model)
        if prompts in self._slow:
            return -1
        return MAX_INLINE_BYTES.get(prompts.kind if prompts else "fastokens", INLINE_BYTES)

    def tokenize(self, request: InferenceRequest) -> Prompt:
        """Tokens by the local tokenizer; empty where there is none or it fails, or where the prompt turns out
        to be long, see `InferenceRequest.is_whole`."""
        try:
            return self._tokenize(request)
        except TooLong as exc:
            return self.failed(request.model, str(exc))
        except NotContinued:
            request.is_whole = True
            return Prompt((), "failed")

    def tokenize_long(self, request: InferenceRequest, max_tokens: int) -> Prompt:
        """Tokenize a prompt of any length, as `tokenize` does. `max_tokens` is the model's limit, 0 if
        unknown. Raises TooLong."""
        if 0 < max_tokens < request.num_ids:
            raise TooLong(request.num_ids)
        prompts = self._find(request.model)
        if prompts is None:
            return self._tokenize(request)
        most_bytes = prompts.expect(max_tokens)
        try:
            if most_bytes and not request.is_crowded and request.kind is not RouteKind.PASS:
                self._check_length(prompts, request, most_bytes)
            return self._tokenize(request)
        finally:
            prompts.expect(0)

    def _check_length(self, prompts: Renderer, request: InferenceRequest, most_bytes: int) -> None:
        """Raise TooLong for a prompt that is too long even without the middle of its long texts, so that
        megabytes are neither decoded nor rendered."""
        half = most_bytes // 2 + 1  # both ends of a text prove as much as the whole
        short = abridged(request.body, half)
        if b"\\" in short:
            short = abridged(request.body, ESCAPE_BYTES * half)
        if short is request.body or len(short) > MAX_DECODED_BYTES:
            return
        part = InferenceRequest(request.kind, request.path, short, {"model": request.model})
        part.decode = request.decode
        try:
            self.made_by(prompts, part)
        except TooLong:
            raise
        except PromptError:
            return  # the whole reports its own fault

    def _tokenize(self, request: InferenceRequest) -> Prompt:
        """Tokenize by the local tokenizer. Raises TooLong."""
        if request.kind is RouteKind.PASS:
            return Prompt()
        if request.is_crowded:
            return self.failed(request.model, "too many values in the body")
        if len(request.body) > MAX_DECODED_BYTES:
            return self.failed(request.model, f"a body over {MAX_DECODED_BYTES >> 20} MiB")
        if _has_many_prompts(request):
            return self.failed(request.model, f"more than {MAX_PROMPTS:,} prompts")
        if request.kind is RouteKind.COMPLETION and (ids := _id_lists(request.fields)):
            return Prompt(tuple(map(tokens_of, ids)), "ids")
        prompts = self._find(request.model)
        if prompts is None:
            return Prompt()
        try:
            if self._others and (others := self._others.get(request.model)):
                return self._made_by_all([prompts, *others], request)
            return self.made_by(prompts, request)
        except TooLong:
            raise
        except PromptError as exc:
            return self.failed(request.model, _loggable(exc))

    def _made_by_all(self, renderers: Sequence[Renderer], request: InferenceRequest) -> Prompt:
        """Prompt by all renderings of a model's engines. Raises PromptError where none of them has one: what
        one engine rejects, another may answer."""
        made: dict[Rendering, Prompt] = {}
        error: PromptError | None = None
        for prompts in renderers:
            try:
                made[prompts.rendering] = self.made_by(prompts, request)
            except TooLong:
                raise
            except PromptError as exc:
                error, made[prompts.rendering] = error or exc, Prompt((), "failed")
        known = [prompt for prompt in made.values() if prompt.source != "failed"]
        if not known:
            assert error is not None
            raise error
        first = known[0]
        differing = {each: prompt for each, prompt in made.items() if prompt.tokens != first.tokens}
        return replace(first, others=differing) if differing else first

    def made_by(self, prompts: Renderer, request: InferenceRequest) -> Prompt:
        """Prompt made by one renderer. Raises PromptError."""
        try:
            return self._made_by(prompts, request)
        except TooCostly as exc:
            self._stop(prompts, exc)
            raise PromptError(str(exc)) from exc

    def _stop(self, prompts: Renderer, exc: TooCostly) -> None:
        """Use a renderer no more, or no more on the event loop: its template took too much."""
        if not exc.is_fault:
            if exc.is_inline:
                self._slow.add(prompts)
            return
        self._local = {model: None if each is prompts else each for model, each in self._local.items()}
        self._others = {
            model: [each for each in some if each is not prompts] for model, some in self._others.items()
        }
        self.refuse(prompts, str(exc))

    def _made_by(self, prompts: Renderer, request: InferenceRequest) -> Prompt:
        """Prompt made by one renderer. Raises PromptError, or TooCostly."""
        try:
            if request.kind is RouteKind.AGENT:
                request = as_chat(request, self._dialect(prompts), self.runs)
            if request.kind is RouteKind.CHAT:
                _check_tools(request.messages.top if request.messages else request.fields)
                tokens, run = prompts.tokens(request, self._clock())
                return Prompt((tokens,), prompts.kind, run)
            if found := prompts.growing(request.fields):
                return Prompt((found.tokens,), prompts.kind, found.run)
            return Prompt(tuple(prompts.completion(request.fields)), prompts.kind)
        except MediaError:
            return self._before_media(prompts, request)

    def decode(self, model: str, tokens: Sequence[int]) -> str | None:
        """Text of some of a prompt's tokens; None where the model has no local tokenizer."""
        prompts = self._find(model)
        return prompts.decode(tokens) if prompts else None

    def _dialect(self, prompts: Renderer) -> Dialect:
        """Dialect of a renderer, derived at its first use."""
        dialect = self._dialects.get(prompts)
        if dialect is None:
            dialect = self._dialects[prompts] = dialect_of(prompts, self._clock())
        return dialect

    def _before_media(self, prompts: Renderer, request: InferenceRequest) -> Prompt:
        fields = request.fields
        root = [request.model, request.cache_salt, *(fields.get(name) for name in PROMPT_FIELDS)]
        behind = links(fields["messages"], encode(root))
        try:
            tokens = (prompts.before_media(fields, self._clock()),)
        except PromptError as exc:
            return replace(self.failed(request.model, _loggable(exc)), links=behind)
        return Prompt(tokens if tokens[0] else (), BEFORE_MEDIA, None, behind)

    def failed(self, model: str, reason: str) -> Prompt:
        """Count and log a prompt that stays unknown."""
        self._metrics.prompt_failures[self._metrics.model_label(model)] += 1
        self._log.warning(
            "model %s: a prompt could not be tokenized (%s); routed by load only", model, reason
        )
        return Prompt((), "failed")

    def _mismatched(self, model: str, template: str) -> None:
        """Count and log a failed proof of a template's cut points, which should never happen."""
        self._metrics.prompt_mismatches[model] += 1
        log.error(
            "tokenizer of %s: a prompt assembled from cached text differed from the whole; "
            "conversations of %s are rendered whole from now on",
            _name(model),
            template,
        )

    def _find(self, model: str) -> Renderer | None:
        local = self._local
        return local[model] if model in local else local.get(ANY_MODEL)


class WorkerTokenizer:
    """Client of workers' own `/tokenize`, with a deadline; answers are cached by the bytes of the request
    body. A worker that fails repeatedly is not called for a while (`models/breaker.py`).

    `timeout_s` bounds the delay of a request's routing, however many prompts it has; within it a worker gets
    the time that it usually takes (`models/tokenize_budget.py`), and a late call goes on. `max_cache_bytes`
    bounds the cached tokens. `counts` are of calls by outcome.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        max_cache_bytes: int = 64 << 20,
        tls: Tls | None = None,
        access: FleetAccess | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
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
        try:
            async with asyncio.timeout(budget.seconds(len(request.body), len(bodies))):
                tokens = [await self._one(url, body, authorization) for body in bodies]
        except TimeoutError as exc:
            budget.late()
            self._failed(url, "late")
            raise PromptError("the worker's /tokenize did not answer in time") from exc
        if 0 < max_tokens < max(map(len, tokens), default=0):
            raise PromptError("the worker's /tokenize made more tokens than the model takes")
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
        return {**sizes, "calls": calls, "budgets": budgets, "left_alone": resting}

    async def close(self) -> None:
        self._calls.cancel()
        await self._session.close()

    def learn(self, url: str, took_s: float, num_bytes: int) -> None:
        """Learn how long a worker took for another body of so many bytes: a probe of it."""
        self._budget(url).answered(took_s, num_bytes)

    async def _one(self, url: str, body: Mapping[str, Any], authorization: str | None) -> Tokens:
        raw = encode(body)
        key = xxh3_128_digest(raw)
        if (tokens := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            self.counts["cached"] += 1
            return tokens
        if not self._breaker(url).may_ask(self._clock()):
            self.counts["not asked"] += 1
            raise PromptError("the worker's /tokenize failed too often and is not called for a while")
        return await self._calls.run(self._fetched(url, raw, key, authorization))

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
            self.counts["refused"] += 1

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


def _ignore(prompts: Renderer, why: str) -> None:
    pass


def _name(model: str) -> str:
    return "all models" if model == ANY_MODEL else model


def _cached_bytes(tokens: Tokens) -> int:
    return CACHE_ENTRY_BYTES + 4 * len(tokens)


def _loggable(exc: PromptError) -> str:
    """Error text without the prompt: other code's messages (a chat template's above all) may quote it."""
    return f"{exc.foreign} in the template or tokenizer" if exc.foreign else str(exc)


def _check_tools(fields: Mapping[str, Any]) -> None:
    """Raise PromptError for more tools than are rendered."""
    tools = fields.get("tools")
    if isinstance(tools, list) and len(tools) > MAX_TOOLS:
        raise PromptError(f"more than {MAX_TOOLS:,} tools")


def _has_many_prompts(request: InferenceRequest) -> bool:
    return request.kind is RouteKind.COMPLETION and request.num_prompts > MAX_PROMPTS


def _id_lists(fields: Mapping[str, Any]) -> list[list[int]]:
    """Prompts of a completion given as token ids; empty where it is text."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        return []
    lists = prompt if isinstance(prompt[0], list) else [prompt]
    return lists if all(ids and isinstance(ids[0], int) for ids in lists) else []
