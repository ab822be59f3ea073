"""Engines that speak OpenAI over HTTP and publish no KV events: TGI, LMDeploy, Ollama.

llama.cpp and MLX have adapters of their own (`llamacpp.py`, `mlx.py`), which are this one with differences.

Their cached blocks are known from kvgate's own decisions only. Their caches expose no blocks, so BLOCK_SIZE
is the grain in which prompts are compared.

    load    gauges of LMDeploy (lmdeploy/metrics/loggers.py) and TGI (its metrics reference); Ollama has none,
            then only kvgate's own count
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct, json

from engines.prometheus import series
from engines.wire import parse, replay_request
from gateway.core.engine import (
    AdapterCalls,
    EngineFlags,
    EngineInfo,
    EngineMarks,
    EngineMetrics,
    EnginePaths,
    EventSource,
    ModelInfo,
    StreamUsage,
    TokenizeCalls,
)
from gateway.core.kv_events import DecodeError, EventBatch

BLOCK_SIZE = 16
"""Tokens per block; vLLM's own, so that a prompt is hashed once for a fleet of both."""
NO_EVENTS = "this engine publishes no KV events"

RUNNING = ("lmdeploy:num_requests_running{", "tgi_batch_current_size ")
WAITING = ("lmdeploy:num_requests_waiting{", "tgi_queue_size ")
USAGE = ("lmdeploy:gpu_cache_usage_perc{",)


class ModelCard(Struct):
    id: str


class ModelList(Struct):
    data: list[ModelCard]


_models = json.Decoder(ModelList).decode


class OpenAi:
    name = "openai"
    marks = EngineMarks()
    usage = StreamUsage(can_be_asked=False)
    paths = EnginePaths("/health", "/metrics", "/v1/models")
    flags = EngineFlags(events="", cached_tokens="")
    reports_from: tuple[int, ...] | None = None
    adapters: AdapterCalls | None = None
    salts_from: tuple[int, ...] | None = None
    salted_paths: frozenset[str] | None = None
    takes_lists = True
    loads_by_name = False
    takes_no_limit = False
    lowest_priority: int | None = None
    tokenize: TokenizeCalls | None = TokenizeCalls()

    def decode(self, frames: Sequence[bytes]) -> EventBatch:
        raise DecodeError(NO_EVENTS)

    def decode_replay(self, frames: Sequence[bytes]) -> EventBatch | None:
        raise DecodeError(NO_EVENTS)

    def decode_in_steps(self, frames: Sequence[bytes], *, is_replay: bool) -> Iterator[EventBatch | None]:
        raise DecodeError(NO_EVENTS)

    def replay_request(self, start_seq: int) -> list[bytes]:
        return replay_request(start_seq)

    def decode_poll(self, body: bytes, block_size: int, now: float) -> list[EventBatch]:
        raise DecodeError(NO_EVENTS)

    def decode_poll_in_steps(self, body: bytes, block_size: int, now: float) -> Iterator[EventBatch | None]:
        raise DecodeError(NO_EVENTS)

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        running, waiting, usage = (_sum(text, names) for names in (RUNNING, WAITING, USAGE))
        if running is None and waiting is None and usage is None:
            return {}
        return {
            0: EngineMetrics(
                num_requests_running=None if running is None else int(running),
                num_requests_waiting=None if waiting is None else int(waiting),
                kv_cache_usage=usage,
            )
        }

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo(card.id) for card in parse("openai /v1/models", _models, body).data)

    def parse_event_sources(self, body: bytes) -> tuple[EventSource, ...]:
        return ()

    def parse_version(self, body: bytes) -> str:
        raise DecodeError("an engine with only the OpenAI API reports no version")

    def parse_info(self, body: bytes | None) -> EngineInfo:
        return EngineInfo(ranks={0: EngineMetrics(block_size=BLOCK_SIZE)}, sources=())


def _sum(text: str, names: Sequence[str]) -> float | None:
    values = [value for name in names for _, value in series(text, name)]
    return sum(values) if values else None
