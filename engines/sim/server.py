"""Generating APIs of the simulated worker: request in, tokens out, over aiohttp."""

import asyncio
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from engines.sim.config import SimConfig
from engines.sim.dialects import (
    AnthropicMessages,
    Generate,
    Responses,
)
from engines.sim.faults import Dice, FaultPlan
from engines.sim.forms import AnswerForm, form_of
from engines.sim.job import OLD_VERSION, VERSION, HttpJob, JobChoice, LoadFailed
from engines.sim.openai import DONE, Chat, Completions, ResponseFormat, WholeFormat
from engines.sim.params import (
    ApiError,
    Body,
    RequestParams,
    decode_body,
    read,
    require,
    sglang_model,
    too_long,
)
from engines.sim.pd.leg import Leg
from engines.sim.pd.protocols import add_transfer_params, load_failed, read_leg
from engines.sim.pd.transfers import Transfers
from engines.sim.rank import SimRank
from engines.sim.words import Vocabulary
from gateway.apis import anthropic, responses
from gateway.apis.anthropic import Dialect
from gateway.apis.to_chat import dialect_of
from gateway.core.blocks import Tokens, tokens_of
from gateway.tokenization.chat_template import TooLong
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, which vLLM keeps
GUARDED = ("/v1", "/v2", "/inference")
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
"""In the words of vLLM 0.32."""
SIMULATED = {"X-Simulated": "kvgate sim"}
"""Header of every generated answer, so that none is taken for a model's."""
TRANSFER_FIELDS = ("kv_transfer_params", "prompt_token_ids")
EXIT_AFTER_S = 0.01  # the response goes out first
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Totals:
    """Totals that `/sim/stats` reports beside the ranks' own counts."""

    requests: int = 0
    streams_cut: int = 0
    clients_gone: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer and vocabulary of a model; workers of one process can share it."""

    prompts: PromptEncoder
    vocabulary: Vocabulary
    dialect: Dialect = field(default_factory=Dialect)
    """How other APIs' bodies become chats before this model's template."""

    @classmethod
    def load(cls, directory: Path) -> "TextModel":
        """Load from a directory. Raises PromptError or VocabularyError."""
        prompts = PromptEncoder.load(directory)
        return cls(prompts, Vocabulary.load(directory), dialect_of(prompts, datetime.now()))


@dataclass(slots=True)
class SimEngine:
    """State that the handlers work on: the whole worker except its sockets. A restart replaces the ranks."""

    config: SimConfig
    texts: TextModel
    ranks: Sequence[SimRank]
    started: float
    faults: FaultPlan = field(default_factory=FaultPlan)
    rng: random.Random = field(default_factory=random.Random)
    totals: Totals = field(default_factory=Totals)
    transfers: Transfers | None = None
    is_finishing: bool = False
    adapters: dict[str, str] = field(default_factory=dict)
    """Paths of the loaded adapters, by name."""
    cut: Dice = field(init=False)
    refuse_prefill: Dice = field(init=False)
    omit_params: Dice = field(init=False)

    def __post_init__(self) -> None:
        self.set_faults(self.faults)

    @property
    def version(self) -> str:
        return VERSION if self.config.event_wire == "map" else OLD_VERSION

    @property
    def models(self) -> tuple[str, ...]:
        return (self.config.model, *self.config.alias, *self.adapters)

    def set_faults(self, faults: FaultPlan) -> None:
        self.faults = faults
        self.cut = Dice(faults.cut, self.rng)
        self.refuse_prefill = Dice(faults.refuse_prefill, self.rng)
        self.omit_params = Dice(faults.omit_params, self.rng)
        if self.transfers is not None:
            self.transfers.set_faults(faults)
        for rank in self.ranks:
            rank.set_faults(faults, self.rng)

    def read(self, body: Body, default_max_tokens: int | None = None) -> RequestParams:
        if self.config.pd_protocol == "sglang":
            body = {**body, "model": sglang_model(body.get("model"), self.models, self.adapters)}
        return read(body, self.models, tuple(self.adapters), default_max_tokens)

    def read_leg(self, body: Body) -> Leg | None:
        """Leg of a request. Raises ApiError for one that the engine rejects, or a fault makes it reject."""
        leg = read_leg(dict(body), self.config)
        if leg is not None and leg.pins and self.refuse_prefill.roll():
            raise ApiError("The server is overloaded.", status=503, kind="ServiceUnavailableError")
        return leg

    def check_admission(self) -> None:
        """Raise ApiError if as many requests run or wait as may."""
        limit = self.config.max_num_queued_reqs
        if limit and sum([rank.num_clients for rank in self.ranks]) >= limit:
            raise ApiError(BUSY, status=503, kind="Service Unavailable")

    def chat_tokens(self, body: Body) -> Tokens:
        """Tokens of a chat. Raises ApiError for one that cannot be rendered."""
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        if self.config.pd_protocol == "trtllm":
            given = body.get("prompt_token_ids")
        self.texts.prompts.expect(self.config.context_tokens)
        try:
            return tokens_of(given) if given else self.texts.prompts.chat(body, datetime.now())
        except TooLong as exc:
            raise too_long(self.config.context_tokens, exc.num_tokens) from exc
        except (PromptError, TypeError, OverflowError) as exc:
            raise ApiError(str(exc), param="messages") from exc

    def chat_of(self, body: Body, translate: Callable[[Body, Dialect], dict[str, Any]]) -> dict[str, Any]:
        """Chat that the engine makes of another API's body. Raises ApiError."""
        try:
            chat = translate(body, self.texts.dialect)
        except PromptError as exc:
            raise ApiError(str(exc), param="messages") from exc
        except (AttributeError, KeyError, TypeError) as exc:
            raise ApiError(f"a field is missing or of a wrong type: {exc}", param="messages") from exc
        transfer = {name: body[name] for name in TRANSFER_FIELDS if name in body}
        return chat | transfer

    def completion_tokens(self, body: Body) -> list[Tokens]:
        if not body.get("prompt"):
            message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
            raise ApiError(message, param="prompt")
        self.texts.prompts.expect(self.config.context_tokens)
        try:
            return self.texts.prompts.completion(body)
        except TooLong as exc:
            raise too_long(self.config.context_tokens, exc.num_tokens) from exc
        except PromptError as exc:
            raise ApiError(str(exc), param="prompt") from exc

    def choose_rank(self, asked_for: str | None) -> SimRank:
        """Rank that the client names, else the least loaded, as with vLLM's own balancer."""
        if asked_for is None:
            return min(self.ranks, key=lambda rank: rank.load)
        number = int(asked_for) if asked_for.isdecimal() else -1
        if not 0 <= number < len(self.ranks):
            raise ApiError(f"data_parallel_rank {asked_for} is out of range [0, {len(self.ranks)}).")
        return self.ranks[number]

    def job(
        self,
        asked: RequestParams,
        prompts: Sequence[Tokens],
        request_id: str | None,
        leg: Leg | None = None,
        form: AnswerForm | None = None,
    ) -> HttpJob:
        answers = []
        for prompt in prompts:
            self._check(prompt)
            sampling = asked.sampling(len(prompt), self.config.context_tokens)
            for choice in range(asked.num_choices):
                key = self.config.seed * 1_000_003 + choice
                mean = self.config.mean_output_tokens
                answers.append(self.texts.vocabulary.answer(prompt, sampling, key, mean, form))
        return HttpJob(asked, prompts, answers, request_id, leg, self.faults.extra_prompt_tokens)

    def _check(self, prompt: Tokens) -> None:
        if not prompt:
            raise ApiError("The decoder prompt cannot be empty", param="prompt")
        if max(prompt) >= self.texts.vocabulary.size:
            raise ApiError(f"Token id {max(prompt)} is out of vocabulary")


class Server:
    """Generating routes of one engine."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/responses", self.responses)
        app.router.add_post("/v1/messages", self.messages)
        app.router.add_post("/inference/v1/generate", self.generate)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = decode_body(await request.read())
        require(body, "messages", list)
        asked = self._engine.read(body)
        prompts = [self._engine.chat_tokens(body)]
        return await self._answer(request, Chat(), asked, prompts, body, form_of(body, body))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = decode_body(await request.read())
        asked = self._engine.read(body, DEFAULT_COMPLETION_TOKENS)
        prompts = self._engine.completion_tokens(body)
        echoes = [self._engine.texts.vocabulary.decode(prompt) for prompt in prompts] if asked.echo else None
        form = form_of({}, body)
        return await self._answer(request, Completions(echoes), asked, prompts, body, form)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = decode_body(await request.read())
        asked = self._engine.read(body)
        if not body.get("input"):
            raise ApiError("input must be text or a list of items", param="input")
        chat = self._engine.chat_of(body, responses.chat_of)
        prompts = [self._engine.chat_tokens(chat)]
        return await self._answer(request, Responses(), asked, prompts, body, form_of(chat, body))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = decode_body(await request.read())
        require(body, "messages", list)
        require(body, "max_tokens", int)
        asked = self._engine.read(body)
        chat = self._engine.chat_of(body, anthropic.chat_of)
        prompts = [self._engine.chat_tokens(chat)]
        return await self._answer(request, AnthropicMessages(), asked, prompts, body, form_of(chat, body))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = decode_body(await request.read())
        ids = require(body, "token_ids", list)
        wishes = body | (body.get("sampling_params") or {})
        asked = self._engine.read(wishes, DEFAULT_COMPLETION_TOKENS)
        if asked.stream:
            raise ApiError("streaming is not simulated here", status=501, kind="NotImplementedError")
        prompts = self._engine.completion_tokens({"prompt": ids})
        return await self._answer(request, Generate(), asked, prompts, body)

    async def _answer(
        self,
        request: web.Request,
        dialect: WholeFormat | ResponseFormat,
        asked: RequestParams,
        prompts: Sequence[Tokens],
        body: Body,
        form: AnswerForm | None = None,
    ) -> web.StreamResponse:
        engine = self._engine
        leg = engine.read_leg(body)
        engine.check_admission()
        named = request.headers.get("X-data-parallel-rank")
        if leg is not None and leg.only_first_token:
            asked = replace(asked, max_tokens=1, min_tokens=0)
        if named is None and leg is not None and leg.room is not None:
            named = str(leg.room % len(engine.ranks))
        try:
            job = engine.job(asked, prompts, request.headers.get("X-Request-Id"), leg, form)
            engine.choose_rank(named)  # an error, if any, before anything is queued
        except ApiError:
            if engine.transfers is not None and leg is not None and leg.source is not None:
                await engine.transfers.notify(leg.source, "drop")
            raise
        engine.totals.requests += 1
        try:
            job.submit(lambda: engine.choose_rank(named))
            if asked.stream and not isinstance(dialect, Generate):
                return await self._stream(request, dialect, job, leg)  # type: ignore[arg-type]
            return await self._whole(dialect, job, leg)
        finally:
            if not job.is_done:
                engine.totals.clients_gone += 1
                job.abort()

    async def _whole(self, dialect: WholeFormat, job: HttpJob, leg: Leg | None) -> web.Response:
        try:
            await job.finish()
            await self._until_fetched(job, leg)
        except LoadFailed as exc:
            raise load_failed(self._engine.config, job) from exc
        usage = job.usage(self._engine.config.prompt_tokens_details)
        data = dialect.unstreamed(job, usage)
        if leg is not None and leg.pins:
            self._notify_prefill(data, job)
        return web.Response(
            body=msgspec.json.encode(data),
            content_type="application/json",
            headers=SIMULATED,
        )

    def _notify_prefill(self, data: dict[str, Any], job: HttpJob) -> None:
        engine = self._engine
        if engine.transfers is not None and not engine.omit_params.roll():
            add_transfer_params(data, job, engine.transfers, engine.config)
        if engine.faults.exit_after_prefill:
            asyncio.get_running_loop().call_later(EXIT_AFTER_S, os._exit, 1)

    async def _stream(
        self, request: web.Request, dialect: ResponseFormat, job: HttpJob, leg: Leg | None
    ) -> web.StreamResponse:
        events = {"Content-Type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=events | SIMULATED)
        await response.prepare(request)
        with_details = self._engine.config.prompt_tokens_details
        left = self._engine.faults.cut.after_chunks if self._engine.cut.roll() else None
        try:
            choices: list[JobChoice] = [await job.wait()]
            await self._until_fetched(job, leg)
        except LoadFailed:
            return await self._fail(response, job, dialect.opening(job, job.usage(with_details)))
        chunks = dialect.opening(job, job.usage(with_details))
        while True:
            for choice in choices:
                if left is not None and left <= 0:
                    return await self._cut(request, response, chunks)
                chunks += dialect.chunk(job, choice, job.usage(with_details))
                left = left - 1 if left is not None else None
            if job.is_done:
                break
            await response.write(chunks)
            choices, chunks = [await job.wait()], b""
        await response.write(chunks + dialect.closing(job, job.usage(with_details)))
        await response.write_eof()
        return response

    async def _until_fetched(self, job: HttpJob, leg: Leg | None) -> None:
        """Wait until decode has the data. Raises LoadFailed where it was not fetched."""
        transfers, key = self._engine.transfers, job.sequences[0].pins
        if leg is None or not leg.answers_when_fetched or transfers is None or key is None:
            return
        if not await transfers.delivered(key):
            raise LoadFailed

    async def _fail(self, response: web.StreamResponse, job: HttpJob, opening: bytes) -> web.StreamResponse:
        """End a stream with an error, as the engines do, which have promised 200 by then."""
        error = load_failed(self._engine.config, job)
        await response.write(opening + b"data: " + error.body(in_stream=True) + b"\n\n" + DONE)
        await response.write_eof()
        return response

    async def _cut(
        self, request: web.Request, response: web.StreamResponse, chunks: bytes
    ) -> web.StreamResponse:
        """Send the promised chunks, then reset the connection."""
        self._engine.totals.streams_cut += 1
        if chunks:
            await response.write(chunks)
        abort(request)
        return response


def abort(request: web.Request, with_reset: bool = False) -> None:
    """Drop the client's connection, with a RST instead of a FIN on request."""
    transport: Any = request.transport
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if with_reset and sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    transport.abort()
