"""A request body to the tokens that the engine will compute: one model's template and tokenizer.

Exactly or not at all: what cannot be told (media, a template of the request's own, prompt embeddings)
raises PromptError, and the caller routes without a prompt. An engine's own /tokenize is the judge.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.template import HF_PARAMETERS, PromptError, Template, conversation, dump_tools
from gateway.core.tokenizer import Tokenizer, TokenizerError

__all__ = ["PromptError", "Prompts"]

# Every template must do this much; one that raises on it is broken, or not for chat.
PROBE = [{"role": "user", "content": "Hello"}]


class Prompts:
    """What one model's engine makes of requests. Build it with `load`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: Mapping[str, Template],
        special_tokens: Mapping[str, str],
        default_kwargs: Mapping[str, Any],
        max_model_len: int | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._templates = templates
        self._special_tokens = special_tokens
        self._default_kwargs = default_kwargs
        self._max_model_len = max_model_len

    @classmethod
    def load(
        cls,
        directory: Path,
        chat_template: str | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
    ) -> "Prompts":
        """The model in `directory`; raises PromptError with the path and the reason.

        The rest must be what the workers were started with: `--chat-template` (its text, or the name
        of one of the model's), `--default-chat-template-kwargs`, `--max-model-len` (only to serve
        `truncate_prompt_tokens: -1`).
        """
        if not directory.is_dir():
            raise PromptError(f"{directory}: no such directory")
        if not (directory / "tokenizer.json").is_file():
            raise PromptError(f"{directory}: no tokenizer.json")
        config = _config(directory)
        try:
            tokenizer = Tokenizer.load(directory / "tokenizer.json", _added_tokens(config), _specials(config))
        except TokenizerError as exc:
            raise PromptError(str(exc)) from exc
        sources = _template_sources(directory, config)
        if chat_template is not None:
            sources = {"default": sources.get(chat_template, chat_template)}
        prompts = cls(
            tokenizer,
            _templates(directory, sources),
            _special_tokens(config),
            default_kwargs or {},
            max_model_len,
        )
        prompts._probe(directory)
        return prompts

    def _probe(self, directory: Path) -> None:
        for name in self._templates:
            tools = [{"type": "function", "function": {"name": "probe"}}] if name == "tool_use" else None
            try:
                self.chat({"messages": PROBE, "tools": tools}, datetime(2024, 1, 1))
            except PromptError as exc:
                raise PromptError(f"{directory}: chat template fails on a plain conversation: {exc}") from exc

    def __repr__(self) -> str:
        return f"Prompts({self._tokenizer!r}, templates={dict(self._templates)!r})"

    @property
    def kind(self) -> str:
        """The encoder in use: "fastokens" or "tokenizers"."""
        return self._tokenizer.kind

    @property
    def why(self) -> str:
        """Why that one."""
        return self._tokenizer.why

    def encode(self, text: str, add_special_tokens: bool) -> Tokens:
        try:
            return self._tokenizer.encode(text, add_special_tokens)
        except TokenizerError as exc:
            raise PromptError(str(exc)) from exc

    def chat(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        """The prompt of a /v1/chat/completions body. `now`: the worker's local time, for strftime_now.

        /tokenize reads less of such a body: no reasoning_effort, documents, reasoning_content, truncation.
        """
        text = self.render(body, now)
        return self._fit(body, text, _flag(body, "add_special_tokens", False))

    def render(self, body: Mapping[str, Any], now: datetime) -> str:
        """The text of a chat body, before the tokenizer."""
        kwargs = self._template_kwargs(body)
        tools = kwargs.get("tools")
        template = self._template(tools is not None)
        messages = conversation(body.get("messages"), template.content_format)
        seen = template.variables - HF_PARAMETERS
        variables = {
            **self._special_tokens,
            **{key: value for key, value in kwargs.items() if key in seen},
            "tools": tools,
            "documents": kwargs.get("documents"),
            "add_generation_prompt": kwargs["add_generation_prompt"],
        }
        render = template.render_open if kwargs["continue_final_message"] else template.render
        return render(messages, variables, now)

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        """The prompts of a /v1/completions body: text, texts, ids or lists of ids."""
        for field in ("prompt_embeds", "suffix"):
            if body.get(field) is not None:
                raise PromptError(f"{field} is not supported")
        special = _flag(body, "add_special_tokens", True)
        given = body.get("prompt")
        if given == []:
            raise PromptError("prompt is empty")
        prompts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if len({type(prompt) for prompt in prompts}) != 1:
            raise PromptError("prompt mixes text and token ids")
        return [self._completion(prompt, body, special) for prompt in prompts]

    def _completion(self, prompt: object, body: Mapping[str, Any], special: bool) -> Tokens:
        if isinstance(prompt, str):
            return self._fit(body, prompt, special)
        if not isinstance(prompt, list):
            raise PromptError("prompt is neither text nor token ids")
        try:
            tokens = tokens_of(prompt)
        except (TypeError, OverflowError) as exc:
            raise PromptError(f"prompt: {exc}") from exc
        return _keep(tokens, self._limit(body), body.get("truncation_side"))

    def _fit(self, body: Mapping[str, Any], text: str, special: bool) -> Tokens:
        """Encode and truncate. Without a side the tokenizer truncates, and keeps what frames the prompt."""
        limit, side = self._limit(body), body.get("truncation_side")
        if limit is None or side is not None or not special:
            return _keep(self.encode(text, special), limit, side)
        room = max(0, limit - self._tokenizer.num_frame_tokens)
        return self._tokenizer.frame(_keep(self.encode(text, False), room, None))

    def _limit(self, body: Mapping[str, Any]) -> int | None:
        limit = body.get("truncate_prompt_tokens")
        if limit is None:
            return None
        if not isinstance(limit, int) or limit < -1:
            raise PromptError("truncate_prompt_tokens is not a count")
        if limit >= 0:
            return limit
        if self._max_model_len is None:
            raise PromptError("truncate_prompt_tokens: -1 needs the model's length")
        # vLLM holds one token back for output, except where none is asked for.
        asked = body.get("max_completion_tokens")
        asked = body.get("max_tokens", 16 if "prompt" in body else 0) if asked is None else asked
        return self._max_model_len - bool(asked)

    def _template(self, with_tools: bool) -> Template:
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        raise PromptError(f"no default chat template, only {sorted(self._templates)}")

    def _template_kwargs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What vLLM passes to the template: the server's defaults, the request's kwargs, its own fields."""
        asked = body.get("chat_template_kwargs") or {}
        if not isinstance(asked, Mapping):
            raise PromptError("chat_template_kwargs is not an object")
        if body.get("chat_template") is not None or asked.get("chat_template") is not None:
            # Programs from clients run on the engine, if it trusts them, not here.
            raise PromptError("chat_template in a request is not rendered")
        effort = body.get("reasoning_effort")
        fields = {
            "add_generation_prompt": _flag(body, "add_generation_prompt", True),
            "continue_final_message": _flag(body, "continue_final_message", False),
            "documents": body.get("documents"),
            "reasoning_effort": effort,
        }
        if effort is not None and "enable_thinking" not in asked:
            fields["enable_thinking"] = effort != "none"
        server = {**self._default_kwargs, **_set({"tools": dump_tools(body.get("tools"))})}
        return {**server, **_set({**asked, **_set(fields)})}


def _set(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM takes None and "auto" for "not given"."""
    return {key: value for key, value in kwargs.items() if value is not None and value != "auto"}


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise PromptError(f"{name} is not true or false")
    return value


def _keep(tokens: Tokens, limit: int | None, side: object) -> Tokens:
    if side not in (None, "left", "right"):
        raise PromptError("truncation_side is neither left nor right")
    if limit is None or limit >= len(tokens):
        return tokens
    # vLLM loads tokenizers of generating models with truncation on the left.
    return tokens[:limit] if side == "right" else tokens[len(tokens) - limit :]


# --- the files of a model ---


def _config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json; older models keep the names of their special tokens in a file apart."""
    config = _json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _json(directory / "special_tokens_map.json")
    if config.get("split_special_tokens"):
        raise PromptError(f"{directory}: split_special_tokens is not supported")
    return config


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise PromptError(f"{path}: {exc}") from exc
    if not isinstance(data, dict):
        raise PromptError(f"{path}: not an object")
    return data


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Variables of the template: bos_token and its like, and whatever a model names so itself."""
    extra = config.get("extra_special_tokens")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    named |= extra if isinstance(extra, dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _added_tokens(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Tokens that the configuration adds to tokenizer.json, or gives other flags."""
    decoder = config.get("added_tokens_decoder") or {}
    return [token for _, token in sorted(decoder.items(), key=lambda item: int(item[0]))]


def _specials(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Special tokens by content: the configuration may name some that tokenizer.json lacks."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = [
        value for key, value in config.items() if key.endswith("_token") and not isinstance(value, bool)
    ]
    values += extra.values() if isinstance(extra, dict) else extra
    return [{"content": value} if isinstance(value, str) else value for value in values if value is not None]


def _template_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files beat the configuration, which has one text or a list of named ones."""
    files = {"default": directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    try:
        found = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except (OSError, ValueError) as exc:
        raise PromptError(f"{directory}: {exc}") from exc
    if found:
        return found
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, Sequence):
        return {each["name"]: each["template"] for each in given}
    return {}


def _templates(directory: Path, sources: Mapping[str, str]) -> dict[str, Template]:
    if not sources:
        raise PromptError(f"{directory}: no chat template")
    try:
        return {name: Template(source) for name, source in sources.items()}
    except PromptError as exc:
        raise PromptError(f"{directory}: {exc}") from exc
