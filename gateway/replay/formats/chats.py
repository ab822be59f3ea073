"""Conversations, each turn a request: ShareGPT, LMSYS and WildChat, the workloads of AIBrix and of
aiperf."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from gateway.replay.formats.messages import ChatMessage, ChatTokens, jobs_of_chat, messages_of
from gateway.replay.formats.reading import (
    PAUSE_S,
    EmptyPrompt,
    Row,
    RowProblem,
    TraceReading,
    job_of_lengths,
)
from gateway.replay.job import ReplayJob
from gateway.replay.line_reader import Lines


class ConversationRow(msgspec.Struct):
    """Conversation of ShareGPT (`conversations`) or of LMSYS and WildChat (`conversation`)."""

    conversations: Any = None
    conversation: Any = None
    id: Any = None
    conversation_id: Any = None
    model: str | None = None
    timestamp: float | str | None = None


class WorkloadRequest(
    msgspec.Struct, rename={"old_prompt_length": "Prompt Length", "old_output_length": "Output Length"}
):
    """Request of an AIBrix workload. Those of a session continue each other."""

    prompt: str | list[ChatMessage] | None = None
    prompt_length: int | None = None
    output_length: int | None = None
    old_prompt_length: int | None = None
    old_output_length: int | None = None
    session_id: int | str | None = None
    model: str | None = None

    @property
    def num_prompt(self) -> int:
        return self.prompt_length or self.old_prompt_length or 0

    @property
    def num_output(self) -> int | None:
        return self.old_output_length if self.output_length is None else self.output_length


class WorkloadRow(msgspec.Struct):
    """Requests of one moment of an AIBrix workload."""

    requests: list[WorkloadRequest]
    timestamp: float | str | None = None


class AiperfMedia(msgspec.Struct):
    """Named texts of a turn."""

    contents: list[str] = []


class AiperfTurn(msgspec.Struct):
    """Turn of an aiperf session."""

    text: str | None = None
    texts: list[str | AiperfMedia] | None = None
    role: str | None = None
    output_length: int | None = None
    timestamp: float | str | None = None

    @property
    def said(self) -> str:
        if self.text:
            return self.text
        parts = [[each] if isinstance(each, str) else each.contents for each in self.texts or []]
        return "\n".join(text for part in parts for text in part)


class AiperfSession(msgspec.Struct):
    """Session of aiperf's multi-turn data, or a prompt of its own."""

    turns: list[AiperfTurn] = []
    session_id: str | int | None = None
    timestamp: float | str | None = None
    text_input: str | None = None
    input_text: str | None = None
    text: str | None = None
    texts: list[str | AiperfMedia] | None = None
    output_length: int | None = None
    model: str | None = None


def conversations(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read a conversation a row."""

    def jobs_of(row: ConversationRow) -> list[ReplayJob]:
        name = row.id if row.conversation_id is None else row.conversation_id
        session = str(lines.number if name is None else name)
        said = row.conversations if row.conversation is None else row.conversation
        chat = ChatTokens(reading, row.model, session)
        return jobs_of_chat(chat, messages_of(said or []), reading.ticks(row.timestamp))

    return dealt(lines, reading, lines.decoded(ConversationRow), jobs_of)


def workload(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read the requests of AIBrix's moments."""
    reading.own_unit = "ms"
    chats: dict[str, ChatTokens] = {}

    def jobs_of(row: WorkloadRow) -> list[ReplayJob]:
        at = reading.ticks(row.timestamp)
        jobs = []
        for each in row.requests:
            try:
                jobs.append(asked(each, at))
            except EmptyPrompt:
                lines.leave_out()
        return jobs

    def asked(each: WorkloadRequest, at: float) -> ReplayJob:
        if each.prompt is None:
            return job_of_lengths(lines, at, each.num_prompt, each.num_output or 1, each.model)
        session = None if each.session_id is None else str(each.session_id)
        chat = ChatTokens(reading, each.model, session)
        if session is not None:
            chat = chats.setdefault(session, chat)
        given = [ChatMessage("user", each.prompt)] if isinstance(each.prompt, str) else each.prompt
        for message in given:
            chat.add(message.speaker, message.text)
        return chat.ask(at, num_output=each.num_output)

    rows = (row for row in lines.decoded(WorkloadRow) if row.requests)
    return dealt(lines, reading, rows, jobs_of)


def sessions(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read aiperf's sessions and prompts."""
    reading.own_unit = "ms"

    def jobs_of(row: AiperfSession) -> list[ReplayJob]:
        begin = row.turns[0].timestamp if row.timestamp is None and row.turns else row.timestamp
        at = reading.ticks(begin)
        chat = ChatTokens(reading, row.model, None if row.session_id is None else str(row.session_id))
        alone = AiperfTurn(row.text_input or row.input_text or row.text, row.texts, None, row.output_length)
        jobs = []
        for turn in row.turns or [alone]:
            chat.add(turn.role or "user", turn.said)
            jobs.append(chat.ask(at, num_output=turn.output_length))
        return jobs

    return dealt(lines, reading, lines.decoded(AiperfSession), jobs_of)


def dealt(
    lines: Lines, reading: TraceReading, rows: Iterable[Row], jobs_of: Callable[[Row], list[ReplayJob]]
) -> Iterator[ReplayJob]:
    """Deal out the requests of conversations. Without times as many are open as keep a pause between two
    turns of each, at the rate of all; with times each row's requests stand together."""
    open_ones: deque[Iterator[ReplayJob]] = deque()
    width = max(1, round(reading.options.requests_per_s * PAUSE_S))
    for row in rows:
        try:
            jobs = jobs_of(row)
            if not jobs and not isinstance(row, WorkloadRow):
                raise EmptyPrompt("no request")
        except EmptyPrompt:
            lines.leave_out()
            continue
        except RowProblem as exc:
            lines.skip(str(exc))
            continue
        if reading.clock != "none":
            yield from jobs
            continue
        open_ones.append(iter(jobs))
        while len(open_ones) >= width:
            yield from _next(open_ones)
    while open_ones:
        yield from _next(open_ones)


def _next(open_ones: deque[Iterator[ReplayJob]]) -> Iterator[ReplayJob]:
    """Request of the conversation that has waited longest; it then waits behind the others."""
    first = open_ones.popleft()
    for job in first:
        yield job
        open_ones.append(first)
        return
