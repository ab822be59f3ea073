"""MLX: prompts as `mlx_lm.server` renders them, which differs from vLLM's in what reaches the template.

Read in mlx-lm 0.32.2: server.py (`process_message_content`, `ResponseGenerator._tokenize`) and
tokenizer_utils.py; and in transformers 5.23, which renders: utils/chat_template_utils.py.
`tests/data/prompts/mlx-0.32.2.json` has the digests of the prompts that its own code makes.

    messages         all fields of the client but those that are null, in its order; content null or absent
                     is "". Reasoning of any name becomes `reasoning_content` and `thinking`
    content parts    joined without a blank; text only (images need a model that reads them, and no tokens of
                     them are made here)
    calls            arguments that are text must be JSON, of any kind
    tools            as the client sent them; an empty list is none. `tool_choice` is ignored
    reasoning        `enable_thinking` is true where the vocabulary has marks of thinking, else false, unless
                     `chat_template_kwargs` has it; `reasoning_effort` is ignored
    arguments        null and "auto" in `chat_template_kwargs` reach the template
    ignored          `add_generation_prompt`, `continue_final_message`, `add_special_tokens`, truncation,
                     `documents`, `chat_template`; in completions also `suffix`
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gateway.core.blocks import Tokens
from gateway.core.decode_errors import UNREADABLE
from gateway.core.multimodal import MEDIA
from gateway.core.rendering import Rendering
from gateway.core.token_runs import ContinuedTokens
from gateway.tokenization.chat_template import (
    HF_PARAMETERS,
    MediaError,
    Message,
    PromptError,
    Template,
    check_nested,
)
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.tokenizer import Tokenizer

MLX: Final = Rendering("mlx")
IGNORED: Final = frozenset(
    {"add_special_tokens", "truncate_prompt_tokens", "truncation_side", "suffix", "prompt_embeds"}
)
"""Fields that vLLM reads beside a prompt, and MLX does not."""
RESERVED: Final = HF_PARAMETERS - {"max_length"} | {
    "messages",
    "tools",
    "add_generation_prompt",
    "sanitize_control_tokens",
}
"""Template arguments that the server passes itself, or that change the rendering."""
REASONING: Final[tuple[str, ...]] = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; the first one counts."""
MARKS: Final[tuple[tuple[str, ...], ...]] = (
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|channel>", "<channel|>"),
    ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
)
"""Tokens by which the server takes a model for one that thinks: all of one line."""


class MlxTemplate(Template):
    """Chat template with messages as the server hands them over."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.knows_developer = True  # the role stays

    def conversation(self, messages: object) -> list[Message]:
        if not isinstance(messages, list):
            raise PromptError("messages is not a list")
        check_nested(messages)
        return [_message(each, f"messages[{i}]") for i, each in enumerate(messages)]


class MlxEncoder(PromptEncoder):
    """Encoder of one model's requests as MLX renders them. Build it with `load_for_mlx`."""

    _has_marks: bool | None = None

    @classmethod
    def load_for_mlx(
        cls,
        directory: Path,
        template: str | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        is_of_file: bool = False,
    ) -> "MlxEncoder":
        """Load the model in `directory`; `tokenizer` is its own where it is loaded already. Raises
        PromptError."""
        encoder = cls.load(
            directory, template, compiled=MlxTemplate, tokenizer=tokenizer, is_of_file=is_of_file
        )
        assert isinstance(encoder, MlxEncoder)
        return encoder

    @property
    def rendering(self) -> Rendering:
        return MLX

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        return super().growing(_read(body))

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        return super().completion(_read(body))

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        return super().before_media(_read(body), now)

    def _fit_chat(self, body: Mapping[str, Any], tokens: Tokens) -> Tokens:
        return tokens

    def _template_kwargs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        given = body.get("chat_template_kwargs") or {}
        if not isinstance(given, Mapping):
            raise PromptError("chat_template_kwargs is not an object")
        for name in given:
            if name in RESERVED:
                raise PromptError(f"chat_template_kwargs: {name} is not rendered")
        return {
            "enable_thinking": self._thinks,
            **given,
            "tools": _tools(body.get("tools") or None),
            "add_generation_prompt": True,
            "continue_final_message": False,
        }

    @property
    def _thinks(self) -> bool:
        if self._has_marks is None:
            self._has_marks = any(all(map(self._is_token, marks)) for marks in MARKS)
        return self._has_marks

    def _is_token(self, text: str) -> bool:
        return len(self.encode(text, False)) == 1


def _read(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without the fields that MLX does not know."""
    return {name: value for name, value in body.items() if name not in IGNORED}


def _tools(tools: object) -> object:
    if tools is not None and not (
        isinstance(tools, Sequence) and all(isinstance(each, dict) for each in tools)
    ):
        raise PromptError("tools is not a list of objects")
    return tools


def _message(message: object, where: str) -> Message:
    if not isinstance(message, dict):
        raise PromptError(f"{where}: not an object")
    result = {**message, "content": _content(message.get("content"), where)}
    result = {name: value for name, value in result.items() if value is not None}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise PromptError(f"{where}: tool_calls is not a list")
        result["tool_calls"] = [_call(call, where) for call in calls]
    reasoning = next((result[name] for name in REASONING if name in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _content(content: object, where: str) -> object:
    if isinstance(content, list):
        return "".join(_text(part, where) for part in content)
    return "" if content is None else content


def _text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if str(kind) in MEDIA:
        raise MediaError(f"{where}: a content part of type {kind!r} is not text")
    if kind != "text" or not isinstance(part, dict) or not isinstance(text := part.get("text"), str):
        raise PromptError(f"{where}: a content part is not text")
    return text


def _call(call: object, where: str) -> object:
    if not isinstance(call, dict):
        raise PromptError(f"{where}: a tool call is not an object")
    function = call.get("function")
    if not function:
        return call
    if not isinstance(function, dict):
        raise PromptError(f"{where}: the function of a tool call is not an object")
    if not isinstance(arguments := function.get("arguments"), str) or not arguments:
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments)}}
    except UNREADABLE as exc:
        raise PromptError(f"{where}: arguments of a tool call are not JSON") from exc
