"""Mistral's own format (tekken.json): prompts made by its library instead of a template.

Built as vLLM (0.32) has them made with `--tokenizer-mode mistral`, by the same library (`mistral-common`):
vLLM's changes of a request are repeated here, and requests that the library rejects are rejected.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.multimodal import MEDIA
from gateway.core.rendering import VLLM
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.tokenization.chat_template import MediaError, arguments_of, check_nested, dump_tools
from gateway.tokenization.plain_text import check_length, plain_texts
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.tokenizer import CACHE_BYTES, SegmentCache

EXTRA = "kvgate[mistral]"
FILE = "tekken.json"
ID_LENGTH = 9
"""Length of a tool call's id: vLLM keeps the end of a longer one, older tokenizers take no other."""
FIRST_WITH_EFFORT = 15
"""First tokenizer version with `reasoning_effort`; vLLM drops the field for earlier ones."""
_REFUSED = ("chat_template", "chat_template_kwargs", "mm_processor_kwargs", "truncate_prompt_tokens")
_TEXT_FIELDS = {"text": "text", "thinking": "thinking"}
_ROLES = ("user", "system", "developer")


def is_native(directory: Path) -> bool:
    """True if vLLM selects Mistral's tokenizer by itself (`--tokenizer-mode auto`), as it does where weights
    are in Mistral's format. If no weights are here, params.json, which comes with those, stands for them."""
    if not (directory / FILE).is_file():
        return False
    if any(directory.rglob("consolidated*.safetensors")) or not (directory / "tokenizer.json").is_file():
        return True
    return (directory / "params.json").is_file() and not any(directory.glob("*.safetensors"))


def load(directory: Path, template: str | None) -> "Mistral":
    """Load the renderer. Raises PromptError."""
    path = directory / FILE
    if template is not None:
        raise PromptError("Mistral's own format has no template; take it out of the model's table")
    if not path.is_file():
        raise PromptError(f"{directory}: no {FILE}")
    try:
        import mistral_common  # noqa: F401  the import that fails is it, or one of its dependencies
        from mistral_common.protocol.instruct.request import ChatCompletionRequest, ReasoningEffort
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ImportError as exc:
        raise PromptError(
            f"{path} needs a library that is not installed: install {EXTRA}, or set renderer = "
            '"worker" or "jinja" in the model\'s table'
        ) from exc
    try:
        tokenizer = MistralTokenizer.from_file(path)
    except Exception as exc:  # a file from elsewhere can fail in any way
        raise PromptError(f"{path} is not a tokenizer: {type(exc).__name__}: {str(exc)[:200]}") from exc
    return Mistral(tokenizer, ChatCompletionRequest.from_openai, tuple(ReasoningEffort))


class _TextEncoder:
    """Adapter of the library's tokenizer to the `Encoder` interface."""

    def __init__(self, encode: Callable[..., list[int]], decode: Callable[[Sequence[int]], str]) -> None:
        self._encode = encode
        self.decode = decode

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        return [tokens_of(self._encode(text, bos=False, eos=False)).tobytes() for text in texts]


class Mistral:
    """Renderer for Mistral's format. `tokenizer` is the library's MistralTokenizer, `request_of` converts
    OpenAI's fields to its request.

    For a conversation that continues, only new texts are tokenized: the library tokenizes each text by
    itself, and the resulting tokens are cached.
    """

    kind = "mistral"
    why = f"the model has {FILE}"
    sources = ("",)  # none: vLLM moves late system messages of agents to the start
    renders_chats_as_engine = True
    prints_day = False
    rendering = VLLM

    def __init__(self, tokenizer: Any, request_of: Callable[..., Any], efforts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._request_of = request_of
        self._efforts = (None, *efforts)
        self._texts = tokenizer.instruct_tokenizer.tokenizer
        self._known = SegmentCache(_TextEncoder(self._texts.encode, self.decode), (), CACHE_BYTES)
        self._texts.encode = self._encode
        #  The library also decodes each prompt for debugging, which takes as long as all the rest.
        tokenizer.instruct_tokenizer.decode = lambda *args, **kwargs: ""
        self._version = int(self._texts.version.value.removeprefix("v").partition("m")[0])

    def __repr__(self) -> str:
        return f"Mistral(v{self._version})"

    def shows_day(self, body: Mapping[str, Any], tokens: Sequence[int], day: date) -> bool:
        """False: no prompt has the day."""
        return False

    def describe(self) -> dict[str, Any]:
        template = {"name": f"mistral v{self._version}", "mode": "whole", "reason": "rendered by code"}
        return {
            "encoder": self.kind,
            "encoder_reason": self.why,
            "templates": [template],
            "segments": self._known.cache(),
        }

    def expect(self, max_tokens: int) -> int:
        """No bound: the library makes the tokens of a text at once."""
        return 0

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        try:
            made = self._tokenizer.encode_chat_completion(self._request(request.fields))
        except PromptError:
            raise
        except Exception as exc:  # the library's own kinds, for any input of a client
            raise PromptError(f"mistral: {exc}", type(exc).__name__) from exc
        return ContinuedTokens(tokens_of(made.tokens))

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        return None

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        texts = plain_texts(body)
        if not texts or not all(texts):
            raise PromptError("prompt is empty")
        starts = _flag(body, "add_special_tokens", True)
        return [tokens_of(self._encode(text, bos=starts, eos=False)) for text in texts]

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        return tokens_of(())

    def decode(self, tokens: Sequence[int]) -> str:
        if not all(0 <= token < self._texts.n_words for token in tokens):
            return "(token ids outside the model's vocabulary)"
        return "".join(self._texts.id_to_piece(token) for token in tokens)

    def remember(
        self,
        runs: TokenRunCache,
        now: datetime,
        mismatch: Callable[[str], None],
        run: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Do nothing: prompts are rendered whole."""

    def _encode(self, text: str, bos: bool, eos: bool) -> list[int]:
        """Cached replacement of the tokenizer's own method, for the library too."""
        check_length(text)
        ids = array("I", self._known.encode([text])[0]).tolist()
        return [*([self._texts.bos_id] if bos else ()), *ids, *([self._texts.eos_id] if eos else ())]

    def _request(self, fields: Mapping[str, Any]) -> Any:
        for name in _REFUSED:
            if fields.get(name) is not None:
                raise PromptError(f"{name} is not rendered")
        messages, tools = fields.get("messages"), dump_tools(fields.get("tools"))
        if not isinstance(messages, list) or not messages:
            raise PromptError("messages is not a non-empty list")
        check_nested(messages)
        made = [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
        is_open = _flag(fields, "continue_final_message", False)
        if _flag(fields, "add_generation_prompt", True) and (is_open or made[-1]["role"] == "assistant"):
            raise PromptError("add_generation_prompt and a message to continue exclude each other")
        effort = fields.get("reasoning_effort")
        if effort not in self._efforts:
            raise PromptError("reasoning_effort: unknown to Mistral's format")
        more = {"reasoning_effort": effort} if self._version >= FIRST_WITH_EFFORT else {}
        return self._request_of(made, tools or None, is_open, **more)


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of a message that make a prompt, as vLLM hands them to the library."""
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        return _assistant(message, where)
    if content is None:
        raise PromptError(f"{where} has no content")
    made = {"role": role, "content": _content(content, where)}
    if role == "tool":
        made["tool_call_id"] = _id(message.get("tool_call_id"), where)
    elif role not in _ROLES:
        raise PromptError(f"{where} has a role that is unknown to Mistral's format")
    return made


def _assistant(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    calls, reasoning = message.get("tool_calls") or [], message.get("reasoning")
    if not isinstance(calls, list):
        raise PromptError(f"{where}: tool_calls is not a list")
    return {
        "role": "assistant",
        "content": _content(message.get("content"), where),
        "tool_calls": [_call(call, where) for call in calls],
        "reasoning": message.get("reasoning_content") if reasoning is None else reasoning,
    }


def _content(content: object, where: str) -> str | list[dict[str, Any]] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError(f"{where}: content is neither text nor a list of parts")
    return [_part(part, where) for part in content]


def _part(part: object, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in MEDIA:
        raise MediaError(f"{where}: a content part of type {kind!r} is not text")
    field = _TEXT_FIELDS.get(str(kind))
    if not isinstance(part, Mapping) or field is None or not isinstance(part.get(field), str):
        raise PromptError(f"{where}: a content part is neither text nor thinking")
    made = {"type": kind, field: part[field]}
    return {**made, "closed": part["closed"]} if kind == "thinking" and "closed" in part else made


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or call.get("type") != "function":
        raise PromptError(f"{where}: a tool call is not a function call")
    if not isinstance(given := function.get("arguments"), (str, Mapping)):
        raise PromptError(f"{where}: a tool call has no arguments")
    kept = {"name": function.get("name"), "arguments": arguments_of(given)}
    return {"id": _id(call.get("id"), where), "type": "function", "function": kept}


def _id(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise PromptError(f"{where}: a tool call has no id")
    return given[-ID_LENGTH:]


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise PromptError(f"{name} is not true or false")
    return value
