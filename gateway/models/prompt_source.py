"""Prompt source: tokenizes a request's prompt by the model's local tokenizer, or by a worker's `/tokenize`.

A prompt that cannot be tokenized is never a reason to fail a request: it is routed by load, counted, and
logged once per model and cause.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Final

from gateway.apis.anthropic import Dialect
from gateway.apis.to_chat import as_chat, dialect_of
from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.json_values import encode
from gateway.core.multimodal import BEFORE_MEDIA, links
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.token_runs import TokenRunCache
from gateway.core.value import replace
from gateway.models.template_trials import run_proofs
from gateway.observability.metrics import Metrics
from gateway.requests.abridged import abridged
from gateway.requests.parsing import PROMPT_FIELDS
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.tokenization.base import Renderer
from gateway.tokenization.chat_template import MediaError, NotContinued, TooCostly, TooLong
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.render_cost import MAX_INLINE_PARTS
from gateway.tokenization.sandbox.render_budget import is_hurried

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

ANY_MODEL: Final = "*"
"""Key of a tokenizer for every model that has none of its own."""

MIN_PART_BYTES: Final = 2
"""Bytes of the shortest part of a chat, with its comma: a body of fewer has fewer parts."""


class PromptSource:
    """Tokenizes requests' prompts. `local` maps model names (or ANY_MODEL) to loaded tokenizers, replaced by
    `set_all`; `runs` is their shared cache of token runs. `refuse` is called, in any thread, with a tokenizer
    that must not be used any more and the reason. `zone` is that of the day in prompts; None: our own."""

    def __init__(
        self,
        local: Mapping[str, Renderer],
        metrics: Metrics,
        clock: Callable[[tzinfo | None], datetime] = datetime.now,
    ) -> None:
        self._local: dict[str, Renderer | None] = dict(local)
        self._others: Mapping[str, Sequence[Renderer]] = {}
        self._metrics = metrics
        self._clock = clock
        self.zone: tzinfo | None = None
        self._zones: Mapping[tuple[str, Rendering], tzinfo] = {}
        self._log = RateLimitedLog(log)
        self._dialects: dict[Renderer, Dialect] = {}
        self._slow: set[Renderer] = set()
        self.refuse: Callable[[Renderer, str], None] = _ignore
        self.runs = TokenRunCache()
        for model, prompts in local.items():
            self.prepare(model, prompts)

    def prepare(self, model: str, prompts: Renderer) -> None:
        """Prepare a tokenizer for use: its process of proofs takes a while, so call it in a thread once there
        is traffic."""
        now, mismatched = self._now(self.zone), partial(self._mismatched, model)
        prompts.remember(self.runs, now, mismatched, partial(run_proofs, _name(model)))

    def set_all(
        self,
        local: Mapping[str, Renderer | None],
        others: Mapping[str, Sequence[Renderer]] | None = None,
        zones: Mapping[tuple[str, Rendering], tzinfo] | None = None,
    ) -> None:
        """Replace the local tokenizers by model; None for a model that is tokenized by its workers, despite
        ANY_MODEL. `others` are those of further renderings; `zones` of workers' clocks other than `zone`."""
        self._local, self._others, self._zones = dict(local), others or {}, zones or {}
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

    def max_inline_parts(self, model: str) -> int:
        """Messages, parts and calls that `tokenize` may be given on the event loop."""
        return int(getattr(self._find(model), "max_inline_parts", MAX_INLINE_PARTS))

    def has_many_parts(self, request: InferenceRequest) -> bool:
        """True for a chat of which the template would take milliseconds, however short the messages are."""
        if request.kind is not RouteKind.CHAT and request.kind is not RouteKind.AGENT:
            return False
        most = self.max_inline_parts(request.model)
        return len(request.body) > MIN_PART_BYTES * most and request.num_new_parts > most

    def tokenize(self, request: InferenceRequest) -> Prompt:
        """Tokens by the local tokenizer; empty where there is none or it fails, or where the prompt turns out
        to be long, see `InferenceRequest.is_whole`."""
        try:
            if is_hurried() and self.has_many_parts(request):
                raise NotContinued
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

    def made_by(self, prompts: Renderer, request: InferenceRequest, zone: tzinfo | None = None) -> Prompt:
        """Prompt made by one renderer, with the day of a zone if it is given. Raises PromptError."""
        if zone is None:
            zone = self._zones.get((request.model, prompts.rendering)) if self._zones else None
        try:
            return self._made_by(prompts, request, self._now(zone or self.zone))
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

    def _now(self, zone: tzinfo | None) -> datetime:
        """Time in a zone, without its name: as templates on the worker see it."""
        now = self._clock(zone)
        return now if zone is None else now.replace(tzinfo=None)

    def _made_by(self, prompts: Renderer, request: InferenceRequest, now: datetime) -> Prompt:
        """Prompt made by one renderer. Raises PromptError, or TooCostly."""
        try:
            if request.kind is RouteKind.AGENT:
                request = as_chat(request, self._dialect(prompts), self.runs)
            if request.kind is RouteKind.CHAT:
                _check_tools(request.messages.top if request.messages else request.fields)
                tokens, run = prompts.tokens(request, now)
                return Prompt((tokens,), prompts.kind, run)
            if found := prompts.growing(request.fields):
                return Prompt((found.tokens,), prompts.kind, found.run)
            return Prompt(tuple(prompts.completion(request.fields)), prompts.kind)
        except MediaError:
            return self._before_media(prompts, request, now)

    def decode(self, model: str, tokens: Sequence[int]) -> str | None:
        """Text of some of a prompt's tokens; None where the model has no local tokenizer."""
        prompts = self._find(model)
        return prompts.decode(tokens) if prompts else None

    def _dialect(self, prompts: Renderer) -> Dialect:
        """Dialect of a renderer, derived at its first use."""
        dialect = self._dialects.get(prompts)
        if dialect is None:
            dialect = self._dialects[prompts] = dialect_of(prompts, self._now(self.zone))
        return dialect

    def _before_media(self, prompts: Renderer, request: InferenceRequest, now: datetime) -> Prompt:
        fields = request.fields
        root = [request.model, request.cache_salt, *(fields.get(name) for name in PROMPT_FIELDS)]
        behind = links(fields["messages"], encode(root))
        try:
            tokens = (prompts.before_media(fields, now),)
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
            "tokenizer of %s: a prompt assembled from cached text differed from the full one; "
            "conversations of %s are rendered whole from now on",
            _name(model),
            template,
        )

    def _find(self, model: str) -> Renderer | None:
        local = self._local
        return local[model] if model in local else local.get(ANY_MODEL)


def _ignore(prompts: Renderer, why: str) -> None:
    pass


def _name(model: str) -> str:
    return "all models" if model == ANY_MODEL else model


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
