"""Endpoints other than generation: the worker's state, tokens, small models, and the simulator's own
`/sim`."""

import asyncio
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from engines.sim.faults import parse_faults
from engines.sim.metrics import exposition
from engines.sim.openai import Json
from engines.sim.params import ApiError, decode_body, require
from engines.sim.pd.info import OWNERS, server_info
from engines.sim.server import SimEngine
from gateway.apis import anthropic
from gateway.core.blocks import Tokens

EMBEDDING_SIZE = 8
HIGH_WATER_MARK = 100_000
ANSWER_FIRST_S = 0.01  # a restart resets connections, also that of its own request


def answer(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), content_type="application/json", status=status)


class AdminRoutes:
    """Handlers of these endpoints; `restarts` takes the seconds of downtime of each requested restart."""

    def __init__(self, engine: SimEngine, restarts: "asyncio.Queue[float]") -> None:
        self._engine = engine
        self._restarts = restarts

    def add_routes(self, app: web.Application) -> None:
        for path, get in {
            "/health": self.health,
            "/ping": self.health,
            "/load": self.load,
            "/version": self.version,
            "/v1/models": self.models,
            "/metrics": self.metrics,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/kv_event_sources": self.sources,
            "/sim/stats": self.stats,
            "/sim/cache": self.cache,
            "/sim/media": self.media,
            "/sim/faults": self.faults,
        }.items():
            app.router.add_get(path, get)
        for path, post in {
            "/ping": self.health,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/v1/messages/count_tokens": self.count_tokens,
            "/reset_prefix_cache": self.reset,
            "/v1/embeddings": self.embeddings,
            "/v1/rerank": self.rerank,
            "/rerank": self.rerank,
            "/v1/score": self.score,
            "/score": self.score,
            "/sim/faults": self.set_faults,
        }.items():
            app.router.add_post(path, post)

    # about itself ---------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def load(self, request: web.Request) -> web.Response:
        return answer({"server_load": sum(rank.num_clients for rank in self._engine.ranks)})

    async def version(self, request: web.Request) -> web.Response:
        return answer({"version": self._engine.version})

    async def models(self, request: web.Request) -> web.Response:
        config = self._engine.config
        plain = [self._model(name, config.model, None) for name in (config.model, *config.alias)]
        loaded = self._engine.adapters.items()
        adapters = [self._model(name, path, config.model) for name, path in loaded]
        return answer({"object": "list", "data": plain + adapters})

    def _model(self, name: str, root: str, parent: str | None) -> Json:
        return {
            "id": name,
            "object": "model",
            "created": int(self._engine.started),
            "owned_by": OWNERS.get(self._engine.config.pd_protocol, "vllm"),
            "root": root,
            "parent": parent,
            #  vLLM reports no length for an adapter.
            "max_model_len": None if parent else self._engine.config.context_tokens,
            "permission": [],
        }

    async def metrics(self, request: web.Request) -> web.Response:
        engine = self._engine
        text = exposition(engine.config, engine.ranks, engine.started, engine.transfers)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def server_info(self, request: web.Request) -> web.Response:
        engine = self._engine
        if not engine.config.pd_info:
            raise web.HTTPNotFound
        info = server_info(engine.config, engine.transfers)
        return answer(info | self._events_config() if engine.config.pd_protocol == "sglang" else info)

    def _events_config(self) -> Json:
        """Events configuration as SGLang reports it in its `/server_info`."""
        publisher = self._engine.ranks[0].publisher
        if publisher is None:
            return {"kv_events_config": None}
        config = {
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "topic": self._engine.config.topic,
        }
        return {"kv_events_config": msgspec.json.encode(config).decode()}

    async def sources(self, request: web.Request) -> web.Response:
        config = self._engine.config
        publishers = {rank.number: rank.publisher for rank in self._engine.ranks if rank.publisher}
        return answer(
            {
                str(number): {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": publisher.endpoint,
                    "replay_endpoint": publisher.replay_endpoint,
                    "buffer_steps": config.replay_buffer,
                    "hwm": HIGH_WATER_MARK,
                    "max_queue_size": HIGH_WATER_MARK,
                    "topic": config.topic,
                }
                for number, publisher in publishers.items()
            }
        )

    async def reset(self, request: web.Request) -> web.Response:
        with_running = request.query.get("reset_running_requests", "").lower() in ("1", "true")
        done = await asyncio.gather(*(rank.reset(with_running) for rank in self._engine.ranks))
        return answer({"success": all(done)})

    # tokens and small models ----------------------------------------------------------------------

    async def tokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        self._engine.read(body)
        tokens = self._tokens(body)
        limit = self._engine.config.context_tokens
        names = self._engine.texts.vocabulary.names(tokens) if body.get("return_token_strs") else None
        return answer(
            {"count": len(tokens), "max_model_len": limit, "tokens": tokens.tolist(), "token_strs": names}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        self._engine.read(body)
        return answer({"prompt": self._engine.texts.vocabulary.decode(require(body, "tokens", list))})

    async def count_tokens(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        require(body, "messages", list)
        count = len(self._engine.chat_tokens(self._engine.chat_of(body, anthropic.chat_of)))
        return answer({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def embeddings(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        asked = self._engine.read(body)
        prompts = self._engine.completion_tokens({"prompt": body.get("input")})
        data = [
            {"index": index, "object": "embedding", "embedding": _embedding(prompt)}
            for index, prompt in enumerate(prompts)
        ]
        head = {"id": "embd-sim", "object": "list", "created": int(self._engine.started)}
        return answer(head | {"model": asked.model, "data": data, "usage": _usage(prompts)})

    async def rerank(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        asked = self._engine.read(body)
        documents = require(body, "documents", list)
        pairs = self._pairs(require(body, "query", str), documents)
        scored = sorted(((_score(pair), index) for index, pair in enumerate(pairs)), reverse=True)
        results = [
            {"index": index, "document": {"text": documents[index]}, "relevance_score": score}
            for score, index in scored[: body.get("top_n") or None]
        ]
        return answer({"id": "rerank-sim", "model": asked.model, "usage": _usage(pairs), "results": results})

    async def score(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        asked = self._engine.read(body)
        texts = body.get("text_2")
        pairs = self._pairs(require(body, "text_1", str), [texts] if isinstance(texts, str) else texts or [])
        data = [
            {"index": index, "object": "score", "score": _score(pair)} for index, pair in enumerate(pairs)
        ]
        head = {"id": "score-sim", "object": "list", "created": int(self._engine.started)}
        return answer(head | {"model": asked.model, "data": data, "usage": _usage(pairs)})

    def _tokens(self, body: Json) -> Tokens:
        return (
            self._engine.chat_tokens(body) if "messages" in body else self._engine.completion_tokens(body)[0]
        )

    def _pairs(self, text: str, others: Sequence[str]) -> list[Tokens]:
        if not others:
            raise ApiError("nothing to compare with")
        return self._engine.completion_tokens({"prompt": [f"{text}\n{other}" for other in others]})

    # the simulation itself ------------------------------------------------------------------------

    async def stats(self, request: web.Request) -> web.Response:
        totals = msgspec.to_builtins(self._engine.totals)
        if self._engine.transfers is not None:
            totals |= {"pd": self._engine.transfers.stats()}
        return answer(totals | {"ranks": [rank.stats() for rank in self._engine.ranks]})

    async def cache(self, request: web.Request) -> web.Response:
        """All cached blocks of each rank: [engine hash, kvgate's hash, copies]; raw engine hashes as hex."""
        held = {str(rank.number): rank.scheduler.cache.held() for rank in self._engine.ranks}
        return answer(
            {
                number: [
                    [name.hex() if isinstance(name, bytes) else name, ours, copies]
                    for name, ours, copies in blocks
                ]
                for number, blocks in held.items()
            }
        )

    async def media(self, request: web.Request) -> web.Response:
        """Cached blocks of each rank by medium, as kvgate's hashes."""
        return answer({str(rank.number): rank.scheduler.cache.media() for rank in self._engine.ranks})

    async def faults(self, request: web.Request) -> web.Response:
        return answer(self._engine.faults)

    async def set_faults(self, request: web.Request) -> web.StreamResponse:
        try:
            faults = parse_faults(await request.read())
        except msgspec.DecodeError as exc:
            raise ApiError(str(exc)) from exc
        if faults.exit is not None:
            os._exit(faults.exit)  # as a crash: nothing is closed or notified
        self._engine.set_faults(faults)
        if faults.restart_down_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(ANSWER_FIRST_S, self._restarts.put_nowait, faults.restart_down_s)
        return answer(self._engine.faults)


def _usage(prompts: Sequence[Tokens]) -> Json:
    count = sum(map(len, prompts))
    return {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}


def _embedding(tokens: Tokens) -> list[float]:
    digest = hashlib.blake2b(tokens.tobytes(), digest_size=EMBEDDING_SIZE).digest()
    return [byte / 127.5 - 1.0 for byte in digest]


def _score(tokens: Tokens) -> float:
    return int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=4).digest(), "big") / 2**32
