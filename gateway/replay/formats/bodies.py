"""Requests as clients send them to an OpenAI or Anthropic API: plain, in batch files, in LiteLLM's logs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.replay.formats.chats import dealt
from gateway.replay.formats.messages import ChatMessage, ChatTokens, jobs_of_chat, messages_of, text_of
from gateway.replay.formats.reading import RowProblem, TraceReading, job_of_lengths
from gateway.replay.job import ReplayJob
from gateway.replay.line_reader import Lines

POOLING = ("/embeddings", "/rerank", "/score", "/classify", "/pooling")
"""Ends of URLs of requests for answers without tokens."""
REDACTED = "redacted-by-litellm"


class LoggedBody(msgspec.Struct):
    """Body of a request, alone or in a log's row, which has times, lengths and the answer beside it."""

    model: str | None = None
    messages: Any = None
    prompt: Any = None
    prompts: list[str] | None = None
    input: Any = None
    system: Any = None
    instructions: Any = None
    tools: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    output_tokens: int | None = None
    output_length: int | None = None
    url: str | None = None
    body: "LoggedBody | None" = None
    params: "LoggedBody | None" = None
    request: "LoggedBody | None" = None
    payloads: "list[LoggedBody] | None" = None
    data: "list[LoggedBody] | None" = None
    response: Any = None
    completion: str | None = None
    completions: list[str] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    session_id: str | int | None = None
    trace_id: str | None = None
    timestamp: float | str | None = None
    start_time: float | str | None = None
    startTime: float | str | None = None
    created_at: float | str | None = None

    @property
    def at(self) -> float | str | None:
        times = (self.startTime, self.start_time, self.timestamp, self.created_at)
        return next((time for time in times if time is not None), None)

    @property
    def session(self) -> str | None:
        named = self.trace_id if self.session_id is None else self.session_id
        return None if named is None else str(named)

    @property
    def limit(self) -> int | None:
        """Tokens of the answer, as far as they are known."""
        limits = (
            self.completion_tokens,
            self.output_tokens,
            self.output_length,
            self.max_completion_tokens,
            self.max_output_tokens,
            self.max_tokens,
        )
        return next((limit for limit in limits if limit is not None), None)


def bodies(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read bodies, or rows that have one."""

    def jobs_of(row: LoggedBody) -> list[ReplayJob]:
        return list(_jobs_of_row(lines, reading, row))

    return dealt(lines, reading, lines.decoded(LoggedBody), jobs_of)


def _jobs_of_row(lines: Lines, reading: TraceReading, row: LoggedBody) -> Iterator[ReplayJob]:
    at = reading.ticks(row.at)
    for session in row.data or []:
        for body in session.payloads or [session]:
            yield from _jobs(reading, at, row, body, session.session)
    body = row.body or row.params or row.request or row
    if row.data is None:
        is_known = _has_text(body)
        if is_known or row.prompt_tokens is None:
            yield from _jobs(reading, at, row, body, row.session)
        else:
            job = job_of_lengths(lines, at, row.prompt_tokens, row.completion_tokens or 0, row.model)
            job.session = row.session
            yield job


def _has_text(body: LoggedBody) -> bool:
    """True if a body has its prompt: a log may leave texts out."""
    some = body.messages or body.prompt or body.prompts or body.input
    return bool(some) and REDACTED not in text_of(some)[:200]


def _jobs(
    reading: TraceReading, at: float, row: LoggedBody, body: LoggedBody, session: str | None
) -> Iterator[ReplayJob]:
    """Requests of a body: a chat that ends with an answer is a conversation. Raises RowProblem."""
    model = body.model or row.model
    limit = row.limit if body.limit is None or row.completion_tokens is not None else body.limit
    if row.url and row.url.endswith(POOLING):
        limit = 1
    chat = ChatTokens(reading, model, session)
    prompts = [] if body.messages else _prompts(body.prompt)
    given = _given(body.input)
    for prompt in [*prompts, *given]:
        alone = ChatTokens(reading, model, session)
        _add(alone, prompt)
        yield alone.ask(at, _answer(row), limit)
    if body.prompts:
        yield from jobs_of_chat(chat, _paired(body), at)
    said = body.input if body.messages is None else body.messages
    if said is None or prompts or body.prompts or given:
        return
    messages = [ChatMessage("user", said)] if isinstance(said, str) else messages_of(said)
    for text in (body.tools, body.system, body.instructions):
        chat.add("system", text_of(text))
    if messages and messages[-1].is_answer and _answer(row) is None:
        yield from jobs_of_chat(chat, messages, at)
        return
    for message in messages:
        chat.add(message.speaker, message.text)
    yield chat.ask(at, _answer(row), limit)


def _prompts(prompt: Any) -> list[Any]:
    """Prompts of a completion: a text, texts, token ids, or lists of these."""
    match prompt:
        case None:
            return []
        case [int(), *_]:
            return [prompt]
        case list():
            return prompt
    return [prompt]


def _given(given: Any) -> list[Any]:
    """Inputs of an embedding request, which are texts or token ids; none of anything else."""
    match given:
        case [str() | int() | [int(), *_], *_]:
            return _prompts(given)
    return []


def _add(chat: ChatTokens, prompt: Any) -> None:
    if isinstance(prompt, str):
        chat.add("user", prompt)
    elif isinstance(prompt, list):
        chat.add_tokens(prompt)
    else:
        raise RowProblem("no prompt: neither a text nor token ids")


def _paired(body: LoggedBody) -> Iterator[ChatMessage]:
    """Messages of a session that is kept as its prompts and completions."""
    answers = iter(body.completions or [])
    for prompt in body.prompts or []:
        yield ChatMessage("user", prompt)
        if (answer := next(answers, None)) is not None:
            yield ChatMessage("assistant", answer)


def _answer(row: LoggedBody) -> str | None:
    """Text of a logged answer, if it is there."""
    if row.completion is not None:
        return row.completion
    match row.response:
        case str(text):
            return text
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
        case {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"content": list(parts)}:
            return text_of(parts)
    return None
