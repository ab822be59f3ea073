"""llama.cpp's server (tools/server of b11434): OpenAI's API, no KV events, one cache for each slot.

load     llamacpp:requests_processing and requests_deferred, with --metrics. There is no figure of cache
         usage since b5943; up to then kv_cache_usage_ratio
counts   prompt_tokens_total are computed tokens, prompt_tokens_cached_total those from the cache
context  that of one slot (`meta.n_ctx` of /v1/models): --ctx-size is shared out among the slots
names    any `model` is answered by the one model, under the name that was asked for
prompts  rendered otherwise than by vLLM where a chat has tools without a description or parameters, arguments
         that are no object, empty text parts or late developer messages, or ends with the assistant
lists    each prompt of a list is run; the usage counts the first one only
tokens   /tokenize takes a text as `content`, and answers anything else with no tokens; /apply-template makes
         the text of a chat
limits   `max_tokens` of -1 is an answer as long as the slot's context. There is no `cache_salt`
"""

from typing import Any

from msgspec import Struct, json

from engines.openai import BLOCK_SIZE, OpenAi
from engines.prometheus import series
from engines.wire import parse
from gateway.core.engine import (
    EngineFlags,
    EngineInfo,
    EngineMarks,
    EngineMetrics,
    EnginePaths,
    ModelInfo,
    StreamUsage,
    TokenizeCalls,
)

GAUGES = (
    ("llamacpp:requests_processing ", "num_requests_running"),
    ("llamacpp:requests_deferred ", "num_requests_waiting"),
)
USAGE = "llamacpp:kv_cache_usage_ratio "
COMPUTED, CACHED = "llamacpp:prompt_tokens_total ", "llamacpp:prompt_tokens_cached_total "


class ModelMeta(Struct):
    n_ctx: int | None = None


class ModelCard(Struct):
    id: str
    meta: ModelMeta | None = None


class ModelList(Struct):
    data: list[ModelCard]


class Settings(Struct):
    n_ctx: int | None = None


class Props(Struct):
    """Answer of /props; `total_slots` requests run at once."""

    build_info: str | None = None
    total_slots: int | None = None
    default_generation_settings: Settings | None = None


_models = json.Decoder(ModelList).decode
_props = json.Decoder(Props).decode


class LlamaCpp(OpenAi):
    name = "llamacpp"
    marks = EngineMarks(owned_by="llamacpp", metrics="llamacpp:")
    paths = EnginePaths("/health", "/metrics", "/v1/models", info="/props")
    usage = StreamUsage()
    flags = EngineFlags(events="", cached_tokens="")
    takes_no_limit = True
    lowest_priority: int | None = None
    tokenize: TokenizeCalls | None = TokenizeCalls(field="content", template="/apply-template")

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        found: dict[str, Any] = {}
        for prefix, field in GAUGES:
            if (value := _value(text, prefix)) is not None:
                found[field] = int(value)
        if (usage := _value(text, USAGE)) is not None:
            found["kv_cache_usage"] = usage
        computed, cached = _value(text, COMPUTED), _value(text, CACHED)
        if computed is not None and cached is not None:
            found["prefix_cache_queries_total"] = int(computed + cached)
            found["prefix_cache_hits_total"] = int(cached)
        return {0: EngineMetrics(**found)} if found else {}

    def parse_models(self, body: bytes) -> tuple[ModelInfo, ...]:
        cards = parse("llamacpp /v1/models", _models, body).data
        return tuple(
            ModelInfo(card.id, max_model_len=card.meta.n_ctx if card.meta else None) for card in cards
        )

    def parse_info(self, body: bytes | None) -> EngineInfo:
        """Slots and the context of one are the size of the cache; an older server has no /props."""
        props = parse("llamacpp /props", _props, body) if body else Props()
        settings = props.default_generation_settings
        size = None
        if props.total_slots and settings is not None and settings.n_ctx:
            size = props.total_slots * settings.n_ctx
        rank = EngineMetrics(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=size // BLOCK_SIZE if size else None,
            kv_cache_size_tokens=size,
        )
        return EngineInfo(version=props.build_info, ranks={0: rank}, sources=())


def _value(text: str, prefix: str) -> float | None:
    return next((value for _, value in series(text, prefix)), None)
