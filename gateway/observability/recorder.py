"""Recorder (`--record`): a JSON line per finished request (`observability/recording.py`) for `kvgate replay`.

    decided ─► known by its id ─► finished ─► queue, bounded in bytes ─► thread: encode, append

The recorder observes decisions and the ends of requests. The event loop only puts references into a queue;
requests that do not fit into the queue or the file are dropped and counted. Several processes append to one
file.
"""

import logging
import os
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from gateway.config import Config
from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision
from gateway.core.errors import ConfigError
from gateway.core.outcome import Outcome
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.recording import Recorded

log = logging.getLogger("kvgate.recorder")

MAX_QUEUED_BYTES = 64 << 20
"""Limit on queued hashes and tokens while the disk is slow."""
LINE_BYTES = 400
"""Approximate size of a line without hashes and tokens."""
MAX_OPEN = 100_000
"""Limit on decisions with an awaited end: a program that only asks for decisions never reports an end."""
MAX_BATCH = 256
CLOSE_S = 5.0


@dataclass(slots=True)
class _Known:
    """Fields of a line that are known when a request is decided, and not at its end."""

    blocks: Sequence[BlockHash]
    tokens: Sequence["array[int]"]
    session: str | None


@dataclass(slots=True)
class _Line:
    """A queued line; `arrived_s` is seconds since 1970."""

    known: _Known
    decision: Decision
    outcome: Outcome
    arrived_s: float
    num_bytes: int


class Recorder:
    """Appends finished requests to a file. `metrics` counts the written and the dropped ones. A recorder
    without a path observes nothing. Raises ConfigError for a file that cannot be written."""

    def __init__(
        self, path: Path | None, metrics: Metrics, *, max_bytes: int, keeps_tokens: bool = False
    ) -> None:
        self._path = path
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._keeps_tokens = keeps_tokens
        self._known: dict[str, _Known] = {}
        self._queue: SimpleQueue[_Line | None] = SimpleQueue()
        self._put_bytes = self._done_bytes = 0  # one is counted by the loop, one by the thread
        self._thread: threading.Thread | None = None
        self._has_warned = False
        try:
            if path is not None:
                open(path, "ab", opener=_private).close()
        except OSError as exc:
            raise ConfigError(f"--record {path}: {exc.strerror}") from exc

    def __repr__(self) -> str:
        return f"Recorder({self._path}, {self._put_bytes - self._done_bytes} bytes queued)"

    # the data path ------------------------------------------------------------------------------

    def decided(self, decided: Decided) -> None:
        decision, prompt, blocks, request = decided.decision, decided.prompt, decided.blocks, decided.request
        own = blocks[0] if len(blocks) == 1 else ()
        tokens = prompt.tokens if self._keeps_tokens and len(prompt.tokens) == 1 else ()
        self._known[decision.id] = _Known(own, tokens, request.session)
        if len(self._known) > MAX_OPEN:
            del self._known[next(iter(self._known))]

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        known = self._known.pop(decision.id, None) or _Known((), (), None)
        if outcome.lasted_s is None:
            return
        num_bytes = LINE_BYTES + 8 * len(known.blocks) + sum(4 * len(each) for each in known.tokens)
        if self._put_bytes - self._done_bytes + num_bytes > MAX_QUEUED_BYTES:
            self._metrics.num_unqueued += 1
            return
        self._put_bytes += num_bytes
        line = _Line(known, decision, outcome, time.time() - outcome.lasted_s, num_bytes)
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the queued lines and stop the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_S)
            self._thread = None

    # the thread ---------------------------------------------------------------------------------

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            lines = self._take()
            is_open = lines[-1] is not None
            full = [line for line in lines if line is not None]
            try:
                if full:
                    self._write([msgspec.json.encode(_recorded(line)) + b"\n" for line in full])
            except Exception:  # noqa: BLE001  a bug loses these lines, not all later ones
                log.exception("%d requests could not be recorded", len(full))
                self._metrics.num_unwritten += len(full)
            finally:
                self._done_bytes += sum(line.num_bytes for line in full)

    def _take(self) -> list[_Line | None]:
        """The next queued line and those behind it, up to MAX_BATCH; None marks the end."""
        lines = [self._queue.get()]
        while lines[-1] is not None and len(lines) < MAX_BATCH:
            try:
                lines.append(self._queue.get_nowait())
            except Empty:
                break
        return lines

    def _write(self, lines: Sequence[bytes]) -> None:
        """Write whole lines in one call, so that lines of other processes do not interleave."""
        assert self._path is not None
        try:
            with open(self._path, "ab", buffering=0, opener=_private) as file:
                room = self._max_bytes - os.fstat(file.fileno()).st_size
                num = 0
                while num < len(lines) and (room := room - len(lines[num])) >= 0:
                    num += 1
                data = b"".join(lines[:num])
                if data and file.write(data) != len(data):
                    raise OSError(0, "the disk is full")
        except OSError as exc:
            self._lost(len(lines), exc.strerror or str(exc))
        else:
            self._metrics.num_recorded += num
            if num < len(lines):
                self._lost(len(lines) - num, f"it has reached its size limit of {self._max_bytes} bytes")

    def _lost(self, num: int, why: str) -> None:
        self._metrics.num_unwritten += num
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "recording to %s failed: %s; lost requests are counted in "
                "kvgate_recorder_dropped_requests_total",
                self._path,
                why,
            )


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read: a recording shows who sent how much, and when."""
    return os.open(path, flags, 0o600)


def _recorded(line: _Line) -> Recorded:
    known, decision, outcome = line.known, line.decision, line.outcome
    ttft_s = outcome.ttft_s
    return Recorded(
        at=round(line.arrived_s, 6),
        model=decision.model,
        policy=decision.policy,
        worker=decision.worker.id,
        status=outcome.status,
        result=outcome.result,
        prompt_tokens=outcome.reported_prompt_tokens or decision.num_tokens,
        total_s=round(outcome.lasted_s or 0.0, 6),
        session=None if known.session is None else hashed(known.session),
        block_size=decision.worker.block_size or 0,
        blocks=array("Q", known.blocks).tobytes(),
        tokens=known.tokens[0].tobytes() if known.tokens else b"",
        output_tokens=outcome.reported_output_tokens,
        ttft_s=None if ttft_s is None else round(ttft_s, 6),
        reported_cached_tokens=outcome.reported_cached_tokens,
        predicted_cached_tokens=decision.overlap_tokens,
        cache_blocks=decision.worker.num_blocks,
    )


def hashed(session: str) -> str:
    """A session's name as a hash that is equal in every process and recording. A guessed name can be checked
    against a recording."""
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def recorder_of(config: Config, metrics: Metrics, observers: Observers) -> Recorder:
    """A recorder, which observes decisions and ends if `--record` is given. Raises ConfigError."""
    path = Path(config.record.file) if config.record.file else None
    recorder = Recorder(path, metrics, max_bytes=config.record.max_bytes, keeps_tokens=config.record.tokens)
    if path is not None:
        observers.decided.append(recorder.decided)
        observers.finished.append(recorder.finished)
    return recorder
