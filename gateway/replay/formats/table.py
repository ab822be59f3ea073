"""Table of the formats, and the one that a file has: by its fields, not by its name."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.replay.formats.bodies import bodies
from gateway.replay.formats.chats import conversations, sessions, workload
from gateway.replay.formats.columns import columns, header_of, lengths, plain
from gateway.replay.formats.hashed import hashed
from gateway.replay.formats.reading import TraceReading
from gateway.replay.formats.turns import turns
from gateway.replay.job import ReplayJob
from gateway.replay.line_reader import Lines
from gateway.replay.recorded_jobs import recording

LOOKED_AT = 100
"""First rows of a file by which its format is found: some of them may be broken."""
HELP = "see `kvgate replay --formats`"


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Format of traces. A file has it if one row has all `fields` of one of the groups; groups are in the
    order of `FORMATS`. `prompts` says how much of them is known, `origin` where such files come from."""

    name: str
    origin: str
    prompts: str
    fields: Sequence[Sequence[str]]
    read: Callable[[Lines, TraceReading], Iterator[ReplayJob]]
    own_unit: str | None = None
    is_csv: bool = False
    is_conversation: bool = False

    def has(self, names: Sequence[str], is_csv: bool) -> bool:
        if is_csv != self.is_csv:
            return False
        if is_csv:
            names = [plain(name) for name in names]
            return any(all(plain(field) in names for field in group) for group in self.fields)
        return any(all(field in names for field in group) for group in self.fields)


def _recording(lines: Lines, reading: TraceReading) -> Iterator[ReplayJob]:
    reading.clock = "recorded"
    yield from recording(lines)


_HASHES, _LENGTHS, _TEXTS = "block hashes", "lengths only", "texts"
FORMATS: Mapping[str, TraceFormat] = {
    each.name: each
    for each in (
        TraceFormat("recording", "kvgate serve --record", _HASHES, [("worker",)], _recording),
        TraceFormat("qwen", "Qwen (Bailian)", _HASHES, [("chat_id", "hash_ids")], hashed, "s"),
        TraceFormat(
            "mooncake",
            "Mooncake, Dynamo, aiperf",
            _HASHES,
            [("input_length", "hash_ids"), ("input_length", "output_length")],
            hashed,
            "ms",
        ),
        TraceFormat(
            "aiperf",
            "aiperf, sessions and prompts",
            _TEXTS,
            [("text_input",), ("input_text",), ("turns", "session_id"), ("texts",), ("text",)],
            sessions,
            is_conversation=True,
        ),
        TraceFormat("aibrix", "AIBrix workloads", "texts, or lengths", [("timestamp", "requests")], workload),
        TraceFormat(
            "litellm",
            "LiteLLM logs, JSON",
            "texts, or lengths",
            [("startTime", "messages"), ("startTime", "prompt_tokens")],
            bodies,
            is_conversation=True,
        ),
        TraceFormat(
            "batch",
            "OpenAI and Anthropic batch files",
            _TEXTS,
            [("custom_id", "body"), ("custom_id", "params"), ("body",)],
            bodies,
            is_conversation=True,
        ),
        TraceFormat(
            "sharegpt", "ShareGPT", _TEXTS, [("conversations",)], conversations, is_conversation=True
        ),
        TraceFormat(
            "lmsys", "LMSYS, WildChat", _TEXTS, [("conversation",)], conversations, is_conversation=True
        ),
        TraceFormat(
            "chat",
            "bodies of chat, completion and Responses requests",
            _TEXTS,
            [
                ("messages",),
                ("prompt",),
                ("prompts",),
                ("input[]",),
                ("input", "max_output_tokens"),
                ("input", "instructions"),
                ("data",),
            ],
            bodies,
            is_conversation=True,
        ),
        TraceFormat("turns", "agent traces, whole prompts", _TEXTS, [("input",)], turns),
        TraceFormat(
            "lengths",
            "rows of times and lengths, JSON",
            _LENGTHS,
            [
                ("timestamp", "prompt_tokens", "completion_tokens"),
                ("timestamp", "input_tokens", "output_tokens"),
                ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
                ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
                ("Timestamp", "Request tokens", "Response tokens"),
            ],
            lengths,
        ),
        TraceFormat(
            "azure",
            "Azure 2023, 2024, 2025 (CSV)",
            _LENGTHS,
            [("TIMESTAMP", "ContextTokens", "GeneratedTokens")],
            columns,
            is_csv=True,
        ),
        TraceFormat(
            "burstgpt",
            "BurstGPT (CSV)",
            _LENGTHS,
            [("Timestamp", "Request tokens", "Response tokens")],
            columns,
            "s",
            is_csv=True,
        ),
        TraceFormat(
            "vidur",
            "Vidur (CSV)",
            _LENGTHS,
            [("arrived_at", "num_prefill_tokens", "num_decode_tokens")],
            columns,
            "s",
            is_csv=True,
        ),
        TraceFormat(
            "csv",
            "LiteLLM spend logs and others (CSV)",
            _LENGTHS,
            [
                ("startTime", "prompt_tokens", "completion_tokens"),
                ("timestamp", "input_length", "output_length"),
                ("timestamp", "prompt_tokens", "completion_tokens"),
                ("timestamp", "input_tokens", "output_tokens"),
            ],
            columns,
            is_csv=True,
        ),
    )
}


def detect(lines: Lines) -> TraceFormat:
    """Find the format of a file. Raises ConfigError, which names the nearest one."""
    first = lines.first()
    names: Sequence[str] | None = None
    header = [] if first[:1] in b"{[" else header_of(first)
    for each in FORMATS.values():
        if header and each.has(header, is_csv=True):
            return each
    why = ""
    for row in islice(lines, LOOKED_AT):
        found, problem = _names(row)
        if found is None:
            why = why or problem
            continue
        names = names or found
        for each in FORMATS.values():
            if each.has(found, is_csv=False):
                return each
    lines.number = 1
    if header:
        raise lines.bad(f"neither JSON nor a known CSV header: {nearest(header, is_csv=True)}")
    if names is None:
        raise lines.bad(f"neither JSON nor a CSV header: {why}; {HELP}")
    raise lines.bad(f"unknown format: {nearest(names, is_csv=False)}")


def check(lines: Lines, form: TraceFormat) -> None:
    """Check that a file has the format that was named. Raises ConfigError."""
    if not form.is_csv:
        return
    first = lines.first()
    if not form.has(header_of(first), is_csv=True):
        raise lines.bad(f"no {','.join(form.fields[0])} in its first line, as {form.name} has; {HELP}")


def nearest(names: Sequence[str], is_csv: bool) -> str:
    """Describe the format that a file with these fields resembles most."""
    plains = [plain(name) for name in names]
    best, best_share, best_missing = "", 0.0, ""
    for each in FORMATS.values():
        for group in each.fields if each.is_csv == is_csv else []:
            near = {field for field in group if difflib.get_close_matches(plain(field), plains, 1, 0.7)}
            exact = {field for field in group if (plain(field) in plains if is_csv else field in names)}
            share = (len(near) + len(exact)) / (2 * len(group))
            if share > best_share:
                missing = ", ".join(field for field in group if field not in exact)
                best, best_share, best_missing = each.name, share, missing
    if not best:
        return f"it resembles none of {', '.join(FORMATS)}; {HELP}"
    return f"it resembles {best}, but has no {best_missing}; {HELP}"


def listing() -> list[str]:
    """Lines of a table of all formats."""
    rows = [("format", "from", "prompts", "a row has")]
    for each in FORMATS.values():
        shown = [(", " if not each.is_csv else ",").join(group) for group in each.fields]
        rows.append((each.name, each.origin, each.prompts, " | ".join(shown)))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return ["  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows]


def _names(row: bytes) -> tuple[Sequence[str] | None, str]:
    """Fields of a row, those with lists also as `name[]`; none, and the problem, where it is no JSON."""
    try:
        decoded = msgspec.json.decode(row)
    except UNREADABLE as exc:
        return None, str(exc)
    if not isinstance(decoded, dict):
        return [], ""
    lists = [f"{name}[]" for name, value in decoded.items() if isinstance(value, list)]
    return [*decoded, *lists], ""


def check_options(lines: Lines, reading: TraceReading) -> None:
    """Refuse options that a trace leaves without effect. Raises ConfigError."""
    options, path = reading.options, lines.path
    if options.block_size and not reading.hash_tokens:
        raise ConfigError(f"--trace-block-size: {path} has no hash_ids")
    if options.ticks_per_s and reading.clock != "number":
        kind = {"none": "no times", "ISO": "ISO times", "recorded": "times in seconds"}[reading.clock]
        raise ConfigError(f"--trace-unit: {path} has {kind}")
    if options.rate and reading.clock != "none":
        raise ConfigError(f"--rate: {path} has times; --speed changes their pace")
