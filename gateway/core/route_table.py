"""The table of routes: every path that the gateway forwards or answers, and all that is known of it.

A route is added by one row, and one that carries a chat in another form by a row with its translator's name
(`apis/to_chat.py`). `make docs` writes the rows to `docs/reference/routes.md`. The paths are those of
vLLM 0.32 and SGLang 0.5.9.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class RouteKind(StrEnum):
    """How a route is routed: CHAT and COMPLETION by prefix, AGENT by the prefix of the chat that its body
    translates to (`apis/to_chat.py`), PASS by load alone."""

    CHAT = "chat"
    COMPLETION = "completion"
    AGENT = "agent"
    PASS = "pass"


class Salt(Enum):
    """How a tenant's salt (`requests/cache_salt.py`) applies: FIELD adds it to the body, NO_CACHE sends
    the body unsalted because engines answer it without their caches, REFUSED answers 501."""

    FIELD = "field"
    NO_CACHE = "no cache"
    REFUSED = "refused"


class ErrorFormat(Enum):
    """The form of an error's body (`apis/error_format.py`)."""

    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """An inference path; its method is POST.

    to_chat        the translator in `apis/to_chat.py` that makes a chat of an AGENT's body
    operation      the span's `gen_ai.operation.name`; empty for the path's last segment
    is_queued      waits for a free worker where workers are saturated; engines answer the others at once
    names_model    its body has a place for the model
    takes_forms    engines also read a form (`multipart/form-data`)
    keeps_state    a worker may keep its answer under an id (`apis/response_ids.py`)
    rank_field     names the DP rank in the body, where engines do not read it in a header
    """

    path: str
    kind: RouteKind = RouteKind.PASS
    salt: Salt = Salt.REFUSED
    to_chat: str = ""
    operation: str = ""
    errors: ErrorFormat = ErrorFormat.OPENAI
    is_queued: bool = True
    names_model: bool = True
    takes_forms: bool = False
    keeps_state: bool = False
    rank_field: str = ""


_CHAT, _COMPLETION, _AGENT, _PASS = RouteKind.CHAT, RouteKind.COMPLETION, RouteKind.AGENT, RouteKind.PASS
_FIELD, _NO_CACHE = Salt.FIELD, Salt.NO_CACHE
_ANTHROPIC: Final = ErrorFormat.ANTHROPIC

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
GENERATE: Final = "/generate"

TABLE: Final[tuple[Route, ...]] = (
    Route(CHAT, _CHAT, _FIELD, operation="chat"),
    Route(COMPLETIONS, _COMPLETION, _FIELD, operation="text_completion"),
    Route(RESPONSES, _AGENT, _FIELD, "responses", "chat", keeps_state=True),
    Route("/v1/messages", _AGENT, _FIELD, "anthropic", "chat", _ANTHROPIC),
    Route("/v1/messages/count_tokens", _PASS, _NO_CACHE, errors=_ANTHROPIC, is_queued=False),
    Route("/v1/embeddings", _PASS, _FIELD, operation="embeddings"),
    Route("/v2/embed"),
    Route("/encode", names_model=False),
    Route("/pooling", _PASS, _FIELD),
    Route("/classify", _PASS, _FIELD),
    Route("/v1/classify", _PASS, _FIELD),
    Route("/rerank", _PASS, _FIELD),
    Route("/v1/rerank", _PASS, _FIELD),
    Route("/v2/rerank", _PASS, _FIELD),
    Route("/score", _PASS, _FIELD),
    Route("/v1/score", _PASS, _FIELD),
    Route("/generative_scoring", _PASS, _FIELD),
    Route("/tokenize", _PASS, _NO_CACHE, is_queued=False),
    Route("/detokenize", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/tokenize", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/detokenize", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/chat/completions/render", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/completions/render", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/messages/render", _PASS, _NO_CACHE, errors=_ANTHROPIC, is_queued=False),
    Route("/v1/responses/render", _PASS, _NO_CACHE, is_queued=False),
    Route("/v1/chat/completions/batch", _PASS, _FIELD),
    Route("/cohere/v2/chat"),
    Route("/cohere/v2/chat/render", _PASS, _NO_CACHE, is_queued=False),
    Route(GENERATE, names_model=False, rank_field="routed_dp_rank"),
    Route("/v1/audio/transcriptions", takes_forms=True),
    Route("/v1/audio/translations", takes_forms=True),
)

ROUTES: Final[Mapping[str, Route]] = {route.path: route for route in TABLE}
"""Inference routes by path."""

ADDED: Final = Route("", names_model=False, takes_forms=True)
"""The route of a path that --route added."""

HEALTH, READY, METRICS, MODELS, REALTIME = "/health", "/ready", "/metrics", "/v1/models", "/v1/realtime"
PROBES: Final = frozenset({HEALTH, READY})
"""Answered to load balancers: without a key, for any Host, and beside a base path."""
OWN: Final[Mapping[str, str]] = {
    REALTIME: "a WebSocket, forwarded to a worker",
    MODELS: "answered by the gateway",
    HEALTH: "answered by the gateway: 200 while it runs",
    READY: "answered by the gateway: 503 where no worker is up (`?model=NAME`: for that model)",
}
"""Paths that the gateway answers itself, or in its own way."""


def route_of(path: str) -> Route:
    return ROUTES.get(path, ADDED)


def paths(routes: Iterable[Route]) -> frozenset[str]:
    return frozenset(route.path for route in routes)
