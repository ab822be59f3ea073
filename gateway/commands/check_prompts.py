"""Proofs by prompts for `kvgate check`: kvgate knows the tokens of a worker's texts, and of its chats, or it
does not; a prompt of each kind shows it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.request import InferenceRequest
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Worker
from gateway.requests.parsing import parse_request
from gateway.tokenization.worker_tokens import read_tokens, tokenize_bodies

Post = Callable[[str, object], Awaitable[bytes | None]]
"""Posts a body to a path of the worker; returns None unless the status is 200."""
OursOf = Callable[[InferenceRequest], Sequence[int]]
"""Tokens of a request by kvgate's tokenizer of the model; empty without one."""

PATHS: Mapping[str, str] = {"texts": "/v1/completions", "chats": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class KindProof:
    """Evidence of one prompt of a `kind` of requests: the tokens that kvgate knows of it (`num_known`, 0 for
    none), by its own tokenizer (`is_local`) or the worker's, and what its answer reports. `is_answered` is
    None where the prompt was not sent."""

    kind: str
    is_local: bool
    num_known: int
    is_answered: bool | None = None
    counted: int | None = None
    cached: int | None = None

    @property
    def obstacle(self) -> str | None:
        """Reason why such requests are routed by load; None where they are not, or the worker serves none."""
        if self.num_known or self.is_answered is False:
            return None
        if self.is_local:
            return f"the tokenizer of its model renders no {self.kind}"
        return f"no tokenizer is given for its model, and its own /tokenize takes no {self.kind}"

    @property
    def fault(self) -> str | None:
        """Difference between the tokens that kvgate knows and those that the answer counts."""
        if not self.num_known or not self.counted or self.num_known == self.counted:
            return None
        return (
            f"{self.kind}: kvgate has {self.num_known} tokens of a prompt for which it counts {self.counted}"
        )


async def prove(worker: Worker, kind: str, post: Post, ours_of: OursOf | None, *, sends: bool) -> KindProof:
    """Tokenize a prompt of a kind, by the worker without `ours_of`. If `sends`, have it answered twice, so
    that the second one is cached."""
    request, is_local = _request(worker, kind), ours_of is not None
    num_known = len(ours_of(request)) if ours_of else await _num_by_worker(worker, request, post)
    if not sends:
        return KindProof(kind, is_local, num_known)
    await post(request.path, request.fields)
    answer = await post(request.path, request.fields)
    usage = read_usage(answer or b"")
    if not isinstance(usage, Usage):
        return KindProof(kind, is_local, num_known, answer is not None)
    return KindProof(kind, is_local, num_known, True, usage.prompt_tokens, usage.cached_tokens)


def _request(worker: Worker, kind: str) -> InferenceRequest:
    words = "word " * (2 * (worker.block_size or 1) + 1)
    prompt: dict[str, Any] = {"prompt": words}
    if kind == "chats":
        prompt = {"messages": [{"role": "user", "content": words}]}
    body = {"model": worker.served[0].name, **prompt, "max_tokens": 1}
    return parse_request(PATHS[kind], msgspec.json.encode(body))


async def _num_by_worker(worker: Worker, request: InferenceRequest, post: Post) -> int:
    (body,) = tokenize_bodies(request, rendering=worker.rendering)
    answer = await post("/tokenize", body)
    try:
        return len(read_tokens(answer or b""))
    except UNREADABLE:
        return 0
