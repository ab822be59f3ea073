"""Parameters of a request, and vLLM's errors for invalid ones."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.sim.words import Sampling
from gateway.core.json_values import decode

Body = Mapping[str, Any]


class ApiError(Exception):
    """Error response in vLLM's form: status, message, type, and the parameter at fault."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": kind, "param": param, "code": status}

    def body(self, in_stream: bool = False) -> bytes:
        """Body of the error, as a response or as an event of a stream that had begun."""
        return msgspec.json.encode({"error": self._error})


class FlatError(ApiError):
    """Error response in SGLang's and TensorRT-LLM's form, which has no object around it."""

    def body(self, in_stream: bool = False) -> bytes:
        error = {"object": "error"} | self._error
        return msgspec.json.encode({"error": error} if in_stream else error)


@dataclass(frozen=True, slots=True)
class RequestParams:
    """Parameters of one request, from any API. `max_tokens` None: all that is left."""

    model: str
    adapter: str | None
    cache_salt: str | None
    reads_cache: bool
    reports_hit: bool
    num_choices: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    usage_each_chunk: bool
    return_token_ids: bool
    echo: bool
    num_logprobs: int | None = None
    """Number of alternatives for each token, with log probabilities; None: without log probabilities."""

    def sampling(self, num_prompt: int, context_tokens: int) -> Sampling:
        """Sampling limits for a prompt. Raises ApiError for a prompt or an output length beyond the
        context."""
        if num_prompt > context_tokens:
            raise too_long(context_tokens, num_prompt)
        if self.max_tokens is not None and self.max_tokens > context_tokens:
            raise ApiError(
                f"max_tokens={self.max_tokens} cannot be greater than max_model_len={context_tokens}. Please "
                f"request fewer output tokens. (parameter=max_tokens, value={self.max_tokens})",
                param="max_tokens",
            )
        left = context_tokens - num_prompt
        most = left if self.max_tokens is None else min(self.max_tokens, left)
        if most < 1:
            message = f"max_tokens must be at least 1, got {most}. (parameter=max_tokens, value={most})"
            raise ApiError(message, param="max_tokens")
        if self.min_tokens > most:
            raise ApiError(
                f"min_tokens must be less than or equal to max_tokens={most}, got {self.min_tokens}."
            )
        return Sampling(most, self.min_tokens, self.ignore_eos, self.stop)


def too_long(context_tokens: int, num_prompt: int) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt "
        f"contains {num_prompt} input tokens, which exceeds this limit even without any output "
        "tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={num_prompt})",
        param="input_tokens",
    )


def decode_body(data: bytes) -> dict[str, Any]:
    try:
        body = decode(data)
    except msgspec.DecodeError as exc:
        raise _invalid("json_invalid", "body", "JSON decode error", {}, repr(str(exc))) from exc
    if not isinstance(body, dict):
        raise _invalid("model_attributes_type", "body", "Input should be a valid dictionary", body)
    return body


def require(body: Body, name: str, kind: type) -> Any:
    """Required field of a body; errors are worded as vLLM reports pydantic's."""
    if name not in body:
        raise _invalid("missing", f"body.{name}", "Field required", f"<dict of {len(body)} items>")
    if not isinstance(body[name], kind):
        wanted = {list: "list", str: "string", int: "int"}[kind]
        raise _invalid(f"{wanted}_type", f"body.{name}", f"Input should be a valid {wanted}", body[name])
    return body[name]


def read(
    body: Body, models: Sequence[str], adapters: Sequence[str], default_max_tokens: int | None
) -> RequestParams:
    """Parse a request. `models`: every name served; `adapters`: those that are a LoRA's. Raises ApiError."""
    model = body.get("model") or models[0]
    if model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise ApiError(message, status=404, kind="NotFoundError", param="model")
    num_choices = _count(body, "n", 1, least=1)
    if num_choices > 1 and body.get("temperature") == 0:
        raise ApiError(f"n must be 1 when using greedy sampling, got {num_choices}.")
    given = body.get("stop") or body.get("stop_sequences") or []
    stop = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else None
    if stop is None or not all(isinstance(word, str) for word in stop):
        raise _invalid("list_type", "body.stop", "Input should be a valid list", given)
    if "" in stop:
        raise ApiError("stop cannot contain an empty string.")
    options = _typed(body, "stream_options", dict, {})
    return RequestParams(
        model=model,
        adapter=model if model in adapters else None,
        cache_salt=_salt(body),
        # The engine computes the whole prompt where logprobs of the prompt are wanted.
        reads_cache=body.get("prompt_logprobs") is None and not (body.get("echo") and body.get("logprobs")),
        reports_hit=_typed(body, "vllm_xargs", dict, {}).get("kv_cache_report_mode") == "full",
        num_choices=num_choices,
        max_tokens=_max_tokens(body, default_max_tokens),
        min_tokens=_count(body, "min_tokens", 0, least=0),
        ignore_eos=_typed(body, "ignore_eos", bool, False),
        stop=stop,
        stream=_typed(body, "stream", bool, False),
        include_usage=bool(options.get("include_usage")),
        usage_each_chunk=bool(options.get("continuous_usage_stats")),
        return_token_ids=_typed(body, "return_token_ids", bool, False),
        echo=_typed(body, "echo", bool, False),
        num_logprobs=_num_logprobs(body),
    )


def _num_logprobs(body: Body) -> int | None:
    """Chats say `logprobs: true` and `top_logprobs`, completions `logprobs: 3`."""
    given = body.get("logprobs")
    if given is None or given is False:
        return None
    return _count(body, "top_logprobs", 0, least=0) if given is True else _count(body, "logprobs", 0, least=0)


def sglang_model(model: object, models: Sequence[str], adapters: Container[str]) -> object:
    """The model that SGLang takes a name for: an adapter by "base:adapter", the base by an adapter's own."""
    if not isinstance(model, str):
        return model
    adapter = model.partition(":")[2]
    return adapter if adapter in adapters else models[0] if model in adapters else model


def _salt(body: Body) -> str | None:
    salt: str | None = _typed(body, "cache_salt", str, None)
    if salt == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise ApiError(message, param="cache_salt")
    return salt


def _max_tokens(body: Body, default: int | None) -> int | None:
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        if body.get(name) is not None:
            value = _typed(body, name, int, 0)
            if value < 1:
                message = f"max_tokens must be at least 1, got {value}. (parameter=max_tokens, value={value})"
                raise ApiError(message, param="max_tokens")
            return int(value)
    return default


def _count(body: Body, name: str, default: int, least: int) -> int:
    value = _typed(body, name, int, default)
    if value < least:
        raise ApiError(f"{name} must be at least {least}, got {value}.")
    return int(value)


def _typed(body: Body, name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _invalid(
            f"{kind.__name__}_type", f"body.{name}", f"Input should be a valid {kind.__name__}", value
        )
    return value


def _invalid(kind: str, loc: str, message: str, given: object, context: str = "") -> ApiError:
    found = f"'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': {given!r}"
    found += f", 'ctx': {{'error': {context}}}" if context else ""
    return ApiError(f"1 validation error:\n  {{{found}}}", kind="Bad Request", param=loc)
