"""Cached tokens that engines leave out where there are none: null, or no field at all.

    reported                         means
    -------------------------------  ------------------------------------------------------------------------
    a number                         that many
    null                             0, if the worker has reported a number before, or says that it reports
    nothing                          0, if it has reported a number on the same kind of answer before
    details without the number       unknown
    null or nothing otherwise        unknown: it may not report at all

vLLM wrote null for 0 until mid 2026, and nothing in streams; SGLang does so still, whatever its flags.
"""

from typing import Final

from gateway.core.usage import Usage
from gateway.core.worker import Worker, WorkerId

MAX_WORKERS: Final = 4096
"""Workers that are remembered; beyond, the first ones are forgotten, which costs a report each."""


class CachedReports:
    """Workers that have reported cached tokens as numbers, on which kinds of answers. A worker that joins
    again, as another process or with other names, starts over."""

    def __init__(self) -> None:
        self._known: dict[WorkerId, tuple[Worker, set[tuple[str, bool]]]] = {}

    def __repr__(self) -> str:
        return f"CachedReports({len(self._known)} workers)"

    def settled(self, usage: Usage, worker: Worker, path: str, *, is_stream: bool) -> Usage:
        """Return the usage of an answer of a worker, with 0 cached tokens where it means that. `path` and
        `is_stream` are the kind of answer."""
        worker_known, kinds = self._known.get(worker.id, (None, set()))
        kinds = kinds if worker_known is worker else set()
        if usage.cached_tokens is not None:
            if (path, is_stream) not in kinds:
                self._remember(worker, {*kinds, (path, is_stream)})
            return usage
        if usage.has_null is None:
            return usage
        is_same_kind = (path, is_stream) in kinds
        is_zero = bool(kinds) or worker.reports_cached_tokens is True if usage.has_null else is_same_kind
        return Usage(usage.prompt_tokens, usage.completion_tokens, 0) if is_zero else usage

    def _remember(self, worker: Worker, kinds: set[tuple[str, bool]]) -> None:
        self._known.pop(worker.id, None)
        self._known[worker.id] = worker, kinds
        if len(self._known) > MAX_WORKERS:
            del self._known[next(iter(self._known))]
