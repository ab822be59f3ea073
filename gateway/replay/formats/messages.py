"""Messages of a chat as texts, and the requests of a conversation. The text of a chat stands for what an
engine's template would make of it: equal beginnings stay equal."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from math import nan
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.replay.formats.reading import UNKNOWN_OUTPUT, EmptyPrompt, RowProblem, TraceReading, check_tokens
from gateway.replay.job import MODEL, ReplayJob

ASSISTANTS = frozenset(("assistant", "gpt", "chatgpt", "bing", "bard", "model"))
ANSWERS = "assistant: "
TEXTS = ("text", "input_text", "output_text", "thinking")


class ChatMessage(msgspec.Struct, rename={"from_": "from"}):
    """Message of a chat: with role and content, with ShareGPT's `from` and `value`, or an item of a Responses
    request, which is a message, a call or a call's `output`."""

    role: str | None = None
    content: Any = None
    from_: str | None = None
    value: Any = None
    tool_calls: Any = None
    function_call: Any = None
    type: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    output: Any = None
    summary: Any = None
    timestamp: float | str | None = None

    @property
    def speaker(self) -> str:
        if self.role or self.from_:
            return self.role or self.from_ or ""
        if self.output is not None:
            return "tool"
        return "assistant" if self.type and self.type.endswith(("call", "reasoning")) else "user"

    @property
    def is_answer(self) -> bool:
        return self.speaker in ASSISTANTS

    @property
    def text(self) -> str:
        parts = [self.value if self.content is None else self.content, self.tool_calls, self.function_call]
        if not self.role:
            called = self.name if self.type and self.type.endswith("call") else None
            parts += [called, self.arguments, self.input, self.output, self.summary]
        return "".join(map(text_of, parts))


def messages_of(value: Any) -> list[ChatMessage]:
    """Decode the messages of a chat. Raises RowProblem."""
    try:
        return msgspec.convert(value, list[ChatMessage])
    except UNREADABLE as exc:
        raise RowProblem(f"no messages: {exc}") from exc


def text_of(content: Any) -> str:
    """Text of a message's content: of its texts, and for each other part a mark by which equal ones agree."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(map(_part, content))
    return msgspec.json.encode(content).decode()


def _part(part: Any) -> str:
    if isinstance(part, dict):
        for name in TEXTS:
            if isinstance(text := part.get(name), str):
                return text
        if part.get("type") == "tool_result":
            return text_of(part.get("content"))
        if part.get("type") == "tool_use":
            return f"{part.get('name')} {text_of(part.get('input'))}"
        if "type" in part and part["type"] != "function":
            return f"[{part['type']} {zlib.crc32(msgspec.json.encode(part)):x}]"
    return text_of(part)


class ChatTokens:
    """Tokens of a conversation as it grows. Each answer stands in the next prompt as it was generated."""

    def __init__(self, reading: TraceReading, model: str | None = None, session: str | None = None) -> None:
        self._reading = reading
        self._model = model or MODEL
        self._session = session
        self._tokens = array("I")
        self._num_turns = 0

    def add(self, speaker: str, text: str) -> None:
        """Add a message before the next prompt."""
        encode = self._reading.encode
        if not text:
            return
        if speaker in ASSISTANTS:  # as `ask` has it, so that the tokens agree
            self._tokens += encode(ANSWERS) + encode(text) + encode("\n")
        else:
            self._tokens += encode(f"{speaker}: {text}\n")

    def add_tokens(self, tokens: Sequence[int]) -> None:
        """Add a prompt that is known as tokens. Raises RowProblem."""
        try:
            self._tokens += array("I", tokens)
        except (OverflowError, TypeError) as exc:
            raise RowProblem(f"no token ids: {exc}") from exc

    def ask(self, at: float = nan, answer: str | None = None, num_output: int | None = None) -> ReplayJob:
        """Make the request of all messages so far. Raises RowProblem."""
        if not self._tokens:
            raise EmptyPrompt("empty prompt")
        prompt = self._tokens + self._reading.encode(ANSWERS)
        output = self._reading.encode(answer or "")
        num = len(output) or (UNKNOWN_OUTPUT if num_output is None else num_output)
        check_tokens(len(prompt), num)
        self._num_turns += 1
        self._tokens = prompt + output + self._reading.encode("\n")
        turn = self._num_turns
        return ReplayJob(at, prompt, max(num, 1), turn, output, self._session, self._model)


def jobs_of_chat(
    chat: ChatTokens, messages: Iterable[ChatMessage], at: float, is_open: bool = True
) -> list[ReplayJob]:
    """Requests of a conversation: one for each answer, and one for messages behind the last answer if
    `is_open`. Raises RowProblem."""
    jobs = []
    is_asked = False
    for message in messages:
        if message.is_answer and is_asked:
            jobs.append(chat.ask(at, message.text))
        else:
            chat.add(message.speaker, message.text)
        is_asked = not message.is_answer and (is_asked or bool(message.text))
    if is_open and is_asked:
        jobs.append(chat.ask(at))
    return jobs
