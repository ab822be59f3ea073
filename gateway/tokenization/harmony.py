"""gpt-oss: prompts in OpenAI's harmony format, which vLLM makes by code instead of a template.

Built as vLLM (0.32) builds them, for the library that it uses too (`oss-harmony`, which contains the
vocabulary). PromptEncoder contain the date of the worker's clock. A worker's VLLM_SYSTEM_START_DATE or
VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS is not known here: its responses show that prompts differ
(/admin/verify). Its `/tokenize` renders chats by the template, which its responses are not made from.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from gateway.core.blocks import Tokens, tokens_of
from gateway.core.rendering import VLLM
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import ContinuedTokens, TokenRunCache
from gateway.tokenization.plain_text import check_runs, plain_texts
from gateway.tokenization.prompt_encoder import PromptError

EXTRA = "kvgate[harmony]"
_REFUSED = ("chat_template", "documents", "continue_final_message", "truncate_prompt_tokens")


def load(directory: Path, template: str | None) -> "Harmony":
    """Load the renderer. Raises PromptError."""
    if template is not None:
        raise PromptError("harmony has no template; take it out of the model's table")
    try:
        import openai_harmony
    except ImportError as exc:
        raise PromptError(f"{directory} needs a library that is not installed: install {EXTRA}") from exc
    return Harmony(openai_harmony)


class Harmony:
    """Renderer for gpt-oss; `library` is the module `openai_harmony`."""

    kind = "harmony"
    why = "gpt-oss has no template in vLLM"
    sources: Sequence[str] = ()
    renders_chats_as_engine = False
    rendering = VLLM
    prints_day = True

    def __init__(self, library: Any) -> None:
        self._h = library
        self._encoding = library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
        start, channel, constrain, message = (
            self._encoding.encode(f"<|{mark}|>", allowed_special="all")[0]
            for mark in ("start", "channel", "constrain", "message")
        )
        self._marks = start, channel, constrain, message
        self._config = library.RenderConversationConfig(auto_drop_analysis=False)

    def __repr__(self) -> str:
        return f"Harmony({self._encoding.name!r})"

    def shows_day(self, body: Mapping[str, Any], tokens: Sequence[int], day: date) -> bool:
        """True if the text has the day: `/tokenize` renders by a template, which prints it as answers do."""
        return f"{day:%Y-%m-%d}" in (self.decode(tokens) or "")

    def describe(self) -> dict[str, Any]:
        template = {"name": "harmony", "mode": "whole", "reason": "rendered by code"}
        return {"encoder": self.kind, "encoder_reason": self.why, "templates": [template]}

    def expect(self, max_tokens: int) -> int:
        """No bound: the library makes a conversation's tokens at once."""
        return 0

    def tokens(self, request: InferenceRequest, now: datetime) -> ContinuedTokens:
        fields = request.fields
        for name in _REFUSED:
            if fields.get(name):
                raise PromptError(f"{name} is not rendered")
        check_runs(json.dumps([fields.get("messages"), fields.get("tools")], ensure_ascii=False))
        try:
            messages = self._messages(fields, now)
            conversation = self._h.Conversation.from_messages(_without_old_analysis(messages))
            ids = self._encoding.render_conversation_for_completion(
                conversation, self._h.Role.ASSISTANT, config=self._config
            )
        except PromptError:
            raise
        except Exception as exc:  # the library's own kinds, for any input of a client
            raise PromptError(f"harmony: {exc}", type(exc).__name__) from exc
        return ContinuedTokens(tokens_of(self._with_old_headers(ids)))

    def growing(self, body: Mapping[str, Any]) -> ContinuedTokens | None:
        return None

    def completion(self, body: Mapping[str, Any]) -> list[Tokens]:
        texts = plain_texts(body)
        for text in texts:
            check_runs(text)
        return [tokens_of(self._encoding.encode(text, allowed_special="all")) for text in texts]

    def before_media(self, body: Mapping[str, Any], now: datetime) -> Tokens:
        return tokens_of(())

    def decode(self, tokens: Sequence[int]) -> str | None:
        text: str = self._encoding.decode(list(tokens))
        return text

    def remember(
        self,
        runs: TokenRunCache,
        now: datetime,
        mismatch: Callable[[str], None],
        run: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Do nothing: prompts are rendered whole."""

    # messages ----------------------------------------------------------------------------------

    def _messages(self, fields: Mapping[str, Any], now: datetime) -> list[Any]:
        chat = fields.get("messages")
        if not isinstance(chat, list) or not all(isinstance(message, dict) for message in chat):
            raise PromptError("messages is not a list of messages")
        instructions, rest = None, chat
        if chat and chat[0].get("role") in ("system", "developer"):
            instructions, rest = _flat(chat[0].get("content")), chat[1:]
        tools = fields.get("tools")
        made = [self._system(fields.get("reasoning_effort"), now)]
        if instructions or tools:
            made.append(self._developer(instructions, tools))
        names = {
            call.get("id"): call.get("function", {}).get("name")
            for message in rest
            for call in message.get("tool_calls") or ()
        }
        for message in rest:
            made += self._converted(message, names)
        return made

    def _system(self, effort: object, now: datetime) -> Any:
        h = self._h
        content = h.SystemContent.new()
        if effort is not None:
            efforts = {"high": "HIGH", "medium": "MEDIUM", "low": "LOW"}
            if effort not in efforts:
                raise PromptError("reasoning_effort: unknown to harmony; use high, medium or low")
            content = content.with_reasoning_effort(getattr(h.ReasoningEffort, efforts[str(effort)]))
        content = content.with_conversation_start_date(now.strftime("%Y-%m-%d"))
        return h.Message.from_role_and_content(h.Role.SYSTEM, content)

    def _developer(self, instructions: str | None, tools: Sequence[Mapping[str, Any]] | None = None) -> Any:
        h = self._h
        content = h.DeveloperContent.new()
        if instructions is not None:
            content = content.with_instructions(instructions)
        if tools:
            described = [
                h.ToolDescription.new(
                    name=tool["function"]["name"],
                    description=tool["function"].get("description") or "",
                    parameters=tool["function"].get("parameters"),
                )
                for tool in tools
            ]
            content = content.with_function_tools(described)
        return h.Message.from_role_and_content(h.Role.DEVELOPER, content)

    def _converted(self, message: Mapping[str, Any], names: Mapping[Any, str | None]) -> list[Any]:
        h, role, content = self._h, message.get("role"), message.get("content")
        if message.get("reasoning_content") is not None:
            raise PromptError("reasoning_content: the engine reads reasoning")
        if role == "tool":
            name = names.get(message.get("tool_call_id", ""), "")
            author = h.Author.new(h.Role.TOOL, f"functions.{name}")
            made = h.Message.from_author_and_content(author, _flat(content) or "")
            return [made.with_channel("commentary").with_recipient("assistant")]
        if role == "assistant":
            return self._assistant(message)
        if role in ("system", "developer"):
            text = _flat(content)
            return [] if text is None else [self._developer(text)]
        return [h.Message.from_role_and_contents(role, self._texts(content))]

    def _assistant(self, message: Mapping[str, Any]) -> list[Any]:
        content, calls = message.get("content"), message.get("tool_calls")
        thought = [self._assistant_text(message["reasoning"], "analysis")] if message.get("reasoning") else []
        if not calls:
            contents = self._texts(content)
            if not contents or not contents[0].text:
                return thought
            final = self._h.Message.from_role_and_contents("assistant", contents).with_channel("final")
            return [*thought, final]
        text = _flat(content)
        made = [*([self._assistant_text(text, "commentary")] if text else []), *thought]
        for call in calls:
            function = call.get("function", {})
            called = self._assistant_text(function.get("arguments", "") or "", "commentary")
            called = called.with_recipient(f"functions.{function.get('name', '')}")
            made.append(called.with_content_type("json"))
        return made

    def _assistant_text(self, text: str, channel: str) -> Any:
        return self._h.Message.from_role_and_content(self._h.Role.ASSISTANT, text).with_channel(channel)

    def _texts(self, content: object) -> list[Any]:
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise PromptError("a content part is not text")
            return [self._h.TextContent(text=part["text"]) for part in content]
        return [self._h.TextContent(text=content or "")]

    # tokens ------------------------------------------------------------------------------------

    def _with_old_headers(self, ids: list[int]) -> list[int]:
        """Tool-call headers with the recipient before the channel, as the model was trained; vLLM reorders
        them too."""
        start, _, _, message = self._marks
        result, at = list(ids), 0
        while at < len(result):
            if result[at] != start or message not in result[at + 1 :]:
                at += 1
                continue
            end = result.index(message, at + 1)
            header = self._old_header(result[at + 1 : end])
            if header is not None:
                result[at : end + 1] = header
                end = at + len(header) - 1
            at = end + 1 if header is not None else at + 1
        return result

    def _old_header(self, header: list[int]) -> list[int] | None:
        start, channel, constrain, message = self._marks
        if channel not in header or constrain not in header[header.index(channel) :]:
            return None
        at = header.index(channel)
        to = header.index(constrain, at)
        author, recipient_part, form = (
            self._encoding.decode(part) for part in (header[:at], header[at + 1 : to], header[to + 1 :])
        )
        name, _, recipient = recipient_part[:-1].partition(" to=")
        if author != "assistant" or not recipient_part.endswith(" ") or not (name and recipient and form):
            return None
        encode = self._encoding.encode
        return [start, *encode(f"assistant to={recipient}"), channel, *encode(f"{name} {form}"), message]


def _flat(content: object) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [part if isinstance(part, str) else part.get("text") for part in content]
    some = [text for text in texts if text is not None]
    return "".join(some) if some else None


def _without_old_analysis(messages: Sequence[Any]) -> list[Any]:
    """Messages without the reasoning that led to an answer already given."""
    finals = [
        number
        for number, message in enumerate(messages)
        if message.author.role == "assistant" and message.channel == "final"
    ]
    last = finals[-1] if finals else -1
    return [each for number, each in enumerate(messages) if number >= last or each.channel != "analysis"]
