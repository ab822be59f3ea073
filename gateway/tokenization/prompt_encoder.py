"""Request bodies to the tokens that the engine will compute, by one model's template and tokenizer.

Exactly, or not at all: prompts that cannot be rendered (media, a template of the request's own, prompt
embeddings) raise PromptError, and the caller routes without a prompt. An engine's own /tokenize is the
reference.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from functools import partial
from itertools import product
from os.path import commonprefix
from pathlib import Path
from typing import Any, Final

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.chat_messages import Messages
from gateway.core.multimodal import first_medium, media_endings
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.tokenization import tokenizer_class as classes
from gateway.tokenization.chat_template import (
    HF_PARAMETERS,
    Message,
    NotContinued,
    PromptError,
    Template,
    dump_tools,
)
from gateway.tokenization.conversation_cache import MAX_TRIES, ConversationCache, Found
from gateway.tokenization.model_files import (
    added_tokens,
    missing_tokens,
    read_config,
    read_model_config,
    read_templates,
    special_tokens,
    template_sources,
)
from gateway.tokenization.proof_task import Run, prove_by
from gateway.tokenization.render_cost import MAX_INLINE_PARTS, most_messages
from gateway.tokenization.render_settings import STUB_TOOLS, RenderSetting, RenderSettings
from gateway.tokenization.sandbox.render_budget import is_hurried, probe
from gateway.tokenization.template_needs import needs_of
from gateway.tokenization.text_cache import STRIDE, TextCache, are_apart
from gateway.tokenization.tokenizer import Tokenizer, TokenizerError

__all__ = ["PromptError", "PromptEncoder"]

# Variables by which clients of several models switch reasoning on and off.
SWITCHES: Final = {"enable_thinking", "thinking"}
# Of the prompts put together from known runs, one in so many is checked, and those of a new kind.
CHECK_EVERY: Final = 256
MAX_WHOLE_BYTES: Final = 64 << 10
"""Bytes of a chat that is rendered whole on the event loop although some of its messages are known."""


class PromptEncoder:
    """Encoder of one model's requests by its chat template and tokenizer. Build it with `load`."""

    renders_chats_as_engine = True
    tokenizer_class: str | None = None
    is_of_file = False

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
        self._settings: RenderSettings | None = None
        self._texts: TextCache | None = None
        self._num_known = 0
        self.max_inline_parts = MAX_INLINE_PARTS
        """Messages, parts and calls of a chat that may be new on the event loop."""

    @classmethod
    def load(
        cls,
        directory: Path,
        chat_template: str | None = None,
        default_kwargs: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
        compiled: Callable[[str], Template] = Template,
        tokenizer: Tokenizer | None = None,
        *,
        is_of_file: bool = False,
    ) -> "PromptEncoder":
        """Load the model in `directory`. Raises PromptError with the path and the reason. The other arguments
        must match the workers' options: `--chat-template` (its text, or the name of one of the model's),
        `--default-chat-template-kwargs`, `--max-model-len` (only to serve `truncate_prompt_tokens: -1`).
        `compiled` makes a template of its source; `tokenizer` is the model's where it is loaded already.
        `is_of_file`: tokenizer.json is read as it is, whatever its class (`tokenizer_class.py`)."""
        if not directory.is_dir():
            raise PromptError(f"{directory}: no such directory")
        if not (directory / "tokenizer.json").is_file():
            raise PromptError(f"{directory}: no tokenizer.json")
        config = read_config(directory)
        try:
            name = classes.class_of(directory, config, read_model_config(directory))
            tokenizer = tokenizer or _load_tokenizer(directory, config, None if is_of_file else name)
        except TokenizerError as exc:
            raise PromptError(str(exc)) from exc
        sources = template_sources(directory, config)
        if chat_template is not None:
            sources = {"default": sources.get(chat_template, chat_template)}
        prompts = cls(
            tokenizer,
            read_templates(directory, sources, compiled),
            special_tokens(config),
            default_kwargs or {},
            max_model_len,
        )
        prompts.tokenizer_class, prompts.is_of_file = name, is_of_file
        prompts._probe(directory)
        return prompts

    def _probe(self, directory: Path) -> None:
        """Raise PromptError, with the reason of a plain chat, unless some chat renders: what a template
        refuses beside (a chat without tools, above all) its engine refuses as well, request by request."""
        why: PromptError | None = None
        for body in needs_of(self._templates.values(), self._special_tokens):
            try:
                self.chat(body, datetime(2024, 1, 1))
                return
            except PromptError as exc:
                why = why or exc
        raise PromptError(f"{directory}: chat template fails on a plain conversation: {why}") from why

    def __repr__(self) -> str:
        return f"PromptEncoder({self._tokenizer!r}, templates={dict(self._templates)!r})"

    @property
    def kind(self) -> str:
        """Name of the encoder in use: "fastokens" or "tokenizers"."""
        return self._tokenizer.kind

    @property
    def why(self) -> str:
        return self._tokenizer.why + classes.words_of(self.tokenizer_class, is_of_file=self.is_of_file)

    @property
    def has_two_readings(self) -> bool:
        """True if engines on transformers 5 make another tokenizer of its tokenizer.json than is there."""
        return self.tokenizer_class in classes.REBUILT

    @property
    def parity_advice(self) -> str:  # a likely reason of tokens other than a worker's
        return classes.advice_of(self.tokenizer_class, is_of_file=self.is_of_file)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def rendering(self) -> Rendering:
        return VLLM

    @property
    def sources(self) -> list[str]:
        return [template.source for template in self._templates.values()]

    @property
    def prints_day(self) -> bool:
        return any("strftime_now" in template.variables for template in self._templates.values())

    def shows_day(self, body: Mapping[str, Any], tokens: Sequence[int], day: date) -> bool:
        try:
            return self.chat(body, datetime.combine(day, time(12))).tolist() == list(tokens)
        except PromptError:
            return False

    def describe(self) -> dict[str, Any]:
        """Status view: what is in use and why, in plain values; no text of a prompt."""
        return {
            "encoder": self.kind,
            "encoder_reason": self.why,
            "templates": [self._describe(name, template) for name, template in self._templates.items()],
            "segments": self._tokenizer.cache(),
        }

    def _describe(self, name: str, template: Template) -> dict[str, str]:
        is_incremental, why = False, "text is not tokenized independently between its special tokens"
        if self._settings is not None:
            is_incremental, why = self._settings.tier(template)
        return {"name": name, "mode": "incremental" if is_incremental else "whole", "reason": why}

    def encode(self, text: str, add_special_tokens: bool) -> Tokens:
        try:
            return self._tokenizer.encode(text, add_special_tokens)
        except TokenizerError as exc:
            raise PromptError(str(exc), type(exc).__name__) from exc

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def remember(
        self,
        runs: TokenRunCache,
        now: datetime,
        mismatch: Callable[[str], None],
        run: Run | None = None,
    ) -> None:
        """Make `tokens` cost only the new part of a conversation, where the template is proved for it. `runs`
        may be shared between models. `mismatch` is called, once per template, when a proof turns out wrong;
        its conversations are rendered whole from then on. `run` makes the proofs elsewhere; None: here."""
        self._mismatch = mismatch
        self.max_inline_parts = min(
            [most_messages(partial(self._units, each, now)) for each in self._templates.values()],
            default=MAX_INLINE_PARTS,
        )
        if are_apart(lambda text: self.encode(text, False)):
            self._texts = TextCache(runs, lambda text: self.encode(text, False), b"text %d" % id(self))
        if self._tokenizer.cuts:
            self._conversations = ConversationCache(runs, lambda text: self.encode(text, False))
            self._settings = RenderSettings(self._tokenizer.cuts, self._templates)
            prove_by(run, self.rendering, self._tokenizer.cuts, self._usual_settings(now))

    def _units(self, template: Template, now: datetime, messages: Sequence[Message]) -> int:
        """Units that a rendering takes, as a probe."""
        kwargs = self._template_kwargs({"tools": STUB_TOOLS})
        probe(True)
        try:
            template.render(template.conversation(messages), self._variables(template, kwargs), now)
        finally:
            probe(False)
        return template.num_units

    def _usual_settings(self, now: datetime) -> list[RenderSetting]:
        """Settings that most requests have: the plain ones with tools and without, then those that switch
        thinking on or off."""
        names = {name for template in self._templates.values() for name in template.variables}
        switches = [{}, *({name: value} for name in sorted(SWITCHES & names) for value in (True, False))]
        found: dict[RenderSetting, None] = {}
        for kwargs, tools in product(switches, (None, STUB_TOOLS)):
            with suppress(
                PromptError
            ):  # no template for this, or fields of a wrong shape: requests report it
                setting = self._setting({"tools": tools, "chat_template_kwargs": kwargs}, now)
                if setting is not None:
                    found[setting] = None
        return list(found)

    def expect(self, max_tokens: int) -> int:
        return self._tokenizer.pieces.expect(max_tokens)

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        """Tokens of a chat request, as by `chat`, at the cost of its new messages. Raises NotContinued on the
        event loop for a large chat that was expected to cost no more, and does, or must be checked."""
        settings, chat = self._settings, request.messages
        may_be_too_long = self._tokenizer.pieces.may_be_too_long
        if settings is None or chat is None or not chat.names or may_be_too_long(len(request.body)):
            return ContinuedTokens(self.chat(request.fields, now))
        setting = settings.find(chat.setting, now, lambda: self._setting(request.fields, now))
        if setting is None or not settings.prove(setting):
            return ContinuedTokens(self.chat(request.fields, now))
        is_short = chat.num_known > 0 and not request.is_whole and self._is_costly(request) and is_hurried()
        found = self._known(chat, setting, 1 if is_short else MAX_TRIES)
        if found is None:
            if is_short:
                raise NotContinued
            continued = self._whole(request, chat, setting, now)
        else:
            continued, use = found
            is_due = setting.is_new_use(use) or not (self._num_known + 1) % CHECK_EVERY
            if is_due and is_short:
                raise NotContinued
            setting.count_use(use)
            self._num_known += 1
            if is_due and self._is_wrong(continued.tokens, request, setting, now):
                return ContinuedTokens(self.chat(request.fields, now))
        fitting = self._fit_chat(chat.top, continued.tokens)
        return continued if fitting is continued.tokens else ContinuedTokens(fitting)

    def _is_costly(self, request: InferenceRequest) -> bool:
        """True for a chat that is not rendered whole on the event loop."""
        num = len(request.messages.names) if request.messages is not None else 0
        return len(request.body) > MAX_WHOLE_BYTES or num > self.max_inline_parts

    def _known(self, chat: Messages, setting: RenderSetting, max_tries: int) -> Found | None:
        try:
            if len(chat.names) > 1:
                return self._conversations.known(chat, setting, max_tries)
            if not setting.variables["tools"]:  # behind a stub others stand for them
                return self._conversations.first(setting.template.conversation(chat.decode(0)), setting)
            return None
        except PromptError:
            return None  # rendering the whole reports any error

    def _whole(
        self, request: InferenceRequest, chat: Messages, setting: RenderSetting, now: datetime
    ) -> ContinuedTokens:
        template, variables = setting.template, setting.variables
        messages = template.conversation(chat.decode(0))
        if variables["tools"]:  # behind a stub others stand for them
            variables = self._variables(template, self._template_kwargs(request.fields))
        text = template.render(messages, variables, now)
        return self._conversations.tokens_of_all(chat, messages, text, setting)

    def _is_wrong(
        self, tokens: Tokens, request: InferenceRequest, setting: RenderSetting, now: datetime
    ) -> bool:
        """True if a proof failed: the prompt differs from the whole, or has none."""
        try:
            if self.encode(self.render(request.fields, now), False) == tokens:
                return False
        except PromptError:
            pass
        assert self._settings is not None
        if self._settings.stop(setting.template):
            self._mismatch(repr(setting.template))
        return True

    def _setting(self, body: Mapping[str, Any], now: datetime) -> RenderSetting | None:
        assert self._settings is not None
        kwargs = self._template_kwargs(body)
        template = self._template(kwargs.get("tools") is not None)
        if kwargs["continue_final_message"] or kwargs.get("documents") is not None:
            return None
        return self._settings.of(template, self._variables(template, kwargs), now)

    def chat(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        """Tokens of a /v1/chat/completions body. `now`: the worker's local time, for strftime_now. /tokenize
        reads less of such a body: no reasoning_effort, documents, reasoning_content, truncation."""
        return self._fit_chat(body, self.encode(self.render(body, now), False))

    def _fit_chat(self, body: Mapping[str, Any], tokens: Tokens) -> Tokens:
        return self._fit(body, tokens, _flag(body, "add_special_tokens", False))

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        """Tokens of a chat up to its first medium, the same for any medium and any rest of the chat: those
        that three renderings share, up to a mark at which text is tokenized independently."""
        messages, kwargs = body["messages"], self._template_kwargs(body)
        first = first_medium(messages)
        is_framed = _flag(body, "add_special_tokens", False) or self._limit(body) is not None
        if first is None or kwargs["continue_final_message"] or is_framed:
            return tokens_of(())
        template = self._template(kwargs.get("tools") is not None)
        number, part = first
        message, content = messages[number], messages[number]["content"]
        *known, at = template.conversation([*messages[:number], {**message, "content": content[:part]}])
        if len(message) != 2:
            return tokens_of(())  # the template may print its other fields beside its content
        variables = self._variables(template, kwargs)
        endings = media_endings(at["role"], at["content"], content[part])
        texts = [template.render([*known, *ending], variables, now) for ending in endings]
        shared = commonprefix(texts)
        ends = [shared.rfind(mark) + len(mark) for mark in self._tokenizer.cuts if mark in shared]
        end = max(ends, default=0)
        return self.encode(shared[:end], False)

    def render(self, body: Mapping[str, Any], now: datetime) -> str:
        """Rendered text of a chat body, before the tokenizer."""
        kwargs = self._template_kwargs(body)
        template = self._template(kwargs.get("tools") is not None)
        messages = template.conversation(body.get("messages"))
        render = template.render_open if kwargs["continue_final_message"] else template.render
        return render(messages, self._variables(template, kwargs), now)

    def _variables(self, template: Template, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        seen = template.variables - HF_PARAMETERS
        return {
            **self._special_tokens,
            **{key: value for key, value in kwargs.items() if key in seen},
            "tools": kwargs.get("tools"),
            "documents": kwargs.get("documents"),
            "add_generation_prompt": kwargs["add_generation_prompt"],
        }

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        """Prompts of a /v1/completions body: text, texts, ids or lists of ids."""
        for field in ("prompt_embeds", "suffix"):
            if body.get(field) is not None:
                raise PromptError(f"{field} is not supported")
        special = _flag(body, "add_special_tokens", True)
        given = body.get("prompt")
        if given == []:
            raise PromptError("prompt is empty")
        prompts = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        if len({type(prompt) for prompt in prompts}) != 1:
            raise PromptError("prompt mixes text and token ids")
        return [self._completion(prompt, body, special) for prompt in prompts]

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        """Tokens of a completion of one long text, as by `completion`, at the cost of its new part; None for
        others."""
        text = body.get("prompt")
        is_plain = body.get("prompt_embeds") is None and body.get("suffix") is None
        if self._texts is None or type(text) is not str or len(text) < STRIDE or not is_plain:
            return None
        self._tokenizer.pieces.check_text(text)
        salt = body.get("cache_salt")
        found = self._texts.tokens(text, salt if type(salt) is str else None)
        self._num_known += 1
        if not self._num_known % CHECK_EVERY and self.encode(text, False) != found.tokens:
            self._texts = None
            self._mismatch("single texts")
            return None
        fitting = self._fit(body, found.tokens, _flag(body, "add_special_tokens", True))
        return found if fitting is found.tokens else ContinuedTokens(fitting)

    def _completion(self, prompt: object, body: Mapping[str, Any], special: bool) -> Tokens:
        if isinstance(prompt, str):
            return self._fit(body, self.encode(prompt, False), special)
        if not isinstance(prompt, list):
            raise PromptError("prompt is neither text nor token ids")
        try:
            tokens = tokens_of(prompt)
        except (TypeError, OverflowError) as exc:
            raise PromptError(f"prompt: {exc}", type(exc).__name__) from exc
        return _keep(tokens, self._limit(body), body.get("truncation_side"))

    def _fit(self, body: Mapping[str, Any], tokens: Tokens, special: bool) -> Tokens:
        """Frame and truncate. Without a side the tokenizer truncates, and keeps the frame of the prompt."""
        limit, side = self._limit(body), body.get("truncation_side")
        if not special:
            return _keep(tokens, limit, side)
        if limit is None or side is not None:
            return _keep(self._tokenizer.frame(tokens), limit, side)
        room = max(0, limit - self._tokenizer.num_frame_tokens)
        return self._tokenizer.frame(_keep(tokens, room, None))

    def _limit(self, body: Mapping[str, Any]) -> int | None:
        limit = body.get("truncate_prompt_tokens")
        if limit is None or (isinstance(limit, int) and limit >= 0):
            return limit
        if limit != -1:
            raise PromptError("truncate_prompt_tokens is not a count")
        if self._max_model_len is None:
            raise PromptError("truncate_prompt_tokens: -1 needs the model's length")
        #  vLLM reserves one token for output, unless no output is requested.
        if (asked := body.get("max_completion_tokens")) is None:
            asked = body.get("max_tokens", 16 if "prompt" in body else 0)
        return self._max_model_len - bool(asked)

    def _template(self, with_tools: bool) -> Template:
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._templates:
                return self._templates[name]
        raise PromptError(f"no default chat template, only {sorted(self._templates)}")

    def _template_kwargs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Variables that vLLM passes to the template: the server's defaults, the request's kwargs, its own
        fields."""
        asked = body.get("chat_template_kwargs") or {}
        if not isinstance(asked, Mapping):
            raise PromptError("chat_template_kwargs is not an object")
        if body.get("chat_template") is not None or asked.get("chat_template") is not None:
            # Programs from clients run on the engine, if it trusts them, not here.
            raise PromptError("chat_template in a request is not rendered")
        fields = {
            "add_generation_prompt": _flag(body, "add_generation_prompt", True),
            "continue_final_message": _flag(body, "continue_final_message", False),
            "documents": body.get("documents"),
            "reasoning_effort": (effort := body.get("reasoning_effort")),
        }
        if effort is not None and "enable_thinking" not in asked:
            fields["enable_thinking"] = effort != "none"
        server = {**self._default_kwargs, **_set({"tools": dump_tools(body.get("tools"))})}
        return {**server, **_set({**asked, **_set(fields)})}


def _load_tokenizer(directory: Path, config: Mapping[str, Any], name: str | None) -> Tokenizer:
    """Tokenizer of a model as transformers makes it, by a class or of the file. Raises TokenizerError."""
    path, added = directory / "tokenizer.json", added_tokens(config)
    if name is not None and name in classes.REBUILT:
        specials = missing_tokens(classes.with_specials(config, name))
        rebuild = partial(classes.rebuilt, name=name, config=config)
        return Tokenizer.load(path, added, specials, rebuild=rebuild)
    return Tokenizer.load(path, added, missing_tokens(config))


def _set(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that are set: vLLM takes None and "auto" for "not given"."""
    return {key: value for key, value in kwargs.items() if value is not None and value != "auto"}


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if value is not True and value is not False:
        raise PromptError(f"{name} is not true or false")
    return value


def _keep(tokens: Tokens, limit: int | None, side: object) -> Tokens:
    if side not in (None, "left", "right"):
        raise PromptError("truncation_side is neither left nor right")
    if limit is None or limit >= len(tokens):
        return tokens
    # vLLM loads tokenizers of generating models with truncation on the left.
    return tokens[:limit] if side == "right" else tokens[len(tokens) - limit :]
