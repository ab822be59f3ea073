"""Agent traces: whole prompts as texts. A recorded response is repeated, so that the next turn finds it."""

from collections.abc import Iterator

import msgspec

from gateway.replay.formats.messages import ChatMessage
from gateway.replay.formats.reading import EmptyPrompt, TraceReading, check_tokens, jobs_of_rows
from gateway.replay.job import MODEL, ReplayJob
from gateway.replay.line_reader import Lines


class TurnRow(msgspec.Struct):
    """Row of a trace with whole prompts."""

    input: str | list[ChatMessage] | None = None
    output: str | None = None
    session_id: str | int | None = None
    session: str | int | None = None
    timestamp: float | str | None = None
    model: str | None = None

    @property
    def prompt(self) -> str:
        if isinstance(self.input, list):
            return "".join(f"{message.speaker}: {message.text}\n" for message in self.input)
        return self.input or ""


def turns(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    """Read whole prompts and their answers."""
    num_turns: dict[str, int] = {}

    def jobs_of(row: TurnRow) -> Iterator[ReplayJob]:
        prompt, answer = reading.encode(row.prompt), reading.encode(row.output or "")
        if not prompt:
            raise EmptyPrompt("empty prompt")
        check_tokens(len(prompt), len(answer))
        at = reading.ticks(row.timestamp)
        named = row.session_id if row.session is None else row.session
        session = None if named is None else str(named)
        turn = 1
        if session:
            turn = num_turns[session] = num_turns.get(session, 0) + 1
        yield ReplayJob(at, prompt, len(answer) or 1, turn, answer or [0], session, row.model or MODEL)

    yield from jobs_of_rows(lines, lines.decoded(TurnRow), jobs_of)
