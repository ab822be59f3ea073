"""The latest decisions and their outcomes, for `/admin/decisions/{id}`: no prompt, only numbers."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from gateway.core.decision import Candidate, Decision, PrefillChoice, Timings
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage
from gateway.observability.observers import Observers

log = logging.getLogger("kvgate.requests")

PartsOf = Callable[[Decision], Sequence[Mapping[str, float]]]
"""Returns the parts of each candidate's cost, or an empty sequence where the policy explains none."""

CANDIDATE_BYTES: Final = 400
"""Approximate memory of one candidate of a record."""


MAX_NAME_CHARS: Final = 128
"""Characters of clients' names in lists, and of their ids that are kept."""


class DecisionLog:
    """A ring of decisions, bounded by count and bytes; `observers` are notified of each outcome."""

    def __init__(
        self,
        observers: Observers | None = None,
        *,
        max_records: int = 10_000,
        max_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start an empty log; `clock` is Unix time."""
        self._clock = clock
        self._observers = observers or Observers()
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._ring: OrderedDict[str, tuple[Decision, Outcome | None, float, bytes]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, decision: Decision, request_id: bytes = b"") -> None:
        self._ring[decision.id] = (decision, None, 0.0, request_id[:MAX_NAME_CHARS])
        self._num_bytes += _size(decision)
        while len(self._ring) > self._max_records or self._num_bytes > self._max_bytes:
            _, (oldest, _, _, _) = self._ring.popitem(last=False)
            self._num_bytes -= _size(oldest)

    def finish(
        self,
        decision: Decision,
        result: str,
        status: int,
        ttft_s: float | None,
        usage: Usage | None,
        lasted_s: float | None = None,
        request_id: bytes = b"",
    ) -> None:
        """Record the outcome of a decision, and notify observers; the parameters are those of `Outcome`."""
        outcome = Outcome(result, status, ttft_s, usage, lasted_s)
        if decision.id in self._ring:
            self._ring[decision.id] = (decision, outcome, self._clock(), request_id[:MAX_NAME_CHARS])
        self._observers.notify_finished(decision, outcome)

    def explain(self, decision_id: str, parts_of: PartsOf | None = None) -> dict[str, Any] | None:
        """Return the record as plain JSON values, or None if it is unknown or has been dropped."""
        known = self._ring.get(decision_id)
        if known is None:
            return None
        decision, outcome, _, request_id = known
        record = describe(decision, outcome, parts_of(decision) if parts_of else ())
        return {"id": record.pop("id"), "request_id": request_id.decode("latin-1"), **record}

    def recent(self, limit: int) -> list[str]:
        """Return the newest decision ids, newest first."""
        return list(islice(reversed(self._ring), limit))

    def ended(self, limit: int, text: str = "") -> list[dict[str, Any]]:
        """Return requests that have ended, newest decisions first; with `text`, those with it in an id."""
        found: list[dict[str, Any]] = []
        for decision, outcome, at, id_bytes in reversed(self._ring.values()):
            if outcome is None:
                continue
            request_id = id_bytes.decode("latin-1")
            if not text or text in request_id or text in decision.id:
                found.append(_request(decision, outcome, at, request_id))
                if len(found) >= limit:
                    break
        return found


def describe(
    decision: Decision, outcome: Outcome | None, parts: Sequence[Mapping[str, float]] = ()
) -> dict[str, Any]:
    """Return a decision as plain JSON values; `parts` are the parts of each candidate's cost, if known."""
    return {
        "id": decision.id,
        "model": decision.model,
        "policy": decision.policy,
        "worker": decision.worker.id,
        "reason": decision.reason,
        "attempt": decision.attempt,
        "prompt_tokens": decision.num_tokens,
        "overlap_tokens": decision.overlap_tokens,
        "confirmed_tokens": decision.confirmed_tokens,
        "tokenized_by": decision.prompt_from,
        "queued_s": round(decision.query.queued_s, 6) if decision.query else 0.0,
        "timings_us": _microseconds(decision.timings_s),
        "predicted_ttft_s": decision.ttft_s,
        "candidates": [
            _candidate(decision.terms, i, c) | ({"terms": dict(parts[i])} if parts else {})
            for i, c in enumerate(decision.candidates)
        ],
        "disaggregation": _disaggregation(decision.split) if decision.split else None,
        "outcome": _outcome(outcome),
    }


def _request(decision: Decision, outcome: Outcome, at: float, request_id: str) -> dict[str, Any]:
    """A request in one line."""
    tenant, num_reported = decision.query.tenant if decision.query else None, outcome.reported_prompt_tokens
    return {
        "id": decision.id,
        "request_id": request_id,
        "at": round(at, 3),
        "model": decision.model[:MAX_NAME_CHARS],
        "tenant": tenant[:MAX_NAME_CHARS] if tenant else None,
        "worker": decision.worker.id,
        "prompt_tokens": decision.num_tokens if num_reported is None else num_reported,
        "predicted_cached_tokens": decision.overlap_tokens,
        "reported_cached_tokens": outcome.reported_cached_tokens,
        "output_tokens": outcome.reported_output_tokens,
        "predicted_ttft_s": decision.ttft_s,
        "ttft_s": outcome.ttft_s,
        "total_s": outcome.lasted_s,
        "status": outcome.status,
        "result": outcome.result,
    }


def _size(decision: Decision) -> int:
    num = len(decision.candidates) + (len(decision.split.candidates) if decision.split else 0)
    return 1200 + CANDIDATE_BYTES * num


def _microseconds(timings: Timings) -> dict[str, float]:
    return {stage: round(getattr(timings, stage) * 1e6, 1) for stage in timings.__match_args__}


def _disaggregation(split: PrefillChoice) -> dict[str, Any]:
    prefill = split.prefill
    return {
        "prefill_worker": prefill.id if prefill else None,
        "reason": split.reason,
        "overlap_tokens": prefill.overlap_tokens if prefill else 0,
        "direct_ttft_s": split.direct_s,
        "disaggregated_ttft_s": split.split_s,
        "candidates": [_candidate((), i, candidate) for i, candidate in enumerate(split.candidates)],
    }


def _candidate(terms: Sequence[float], i: int, candidate: Candidate) -> dict[str, Any]:
    return {
        "worker": candidate.id,
        "cost": terms[i] if terms else None,
        "overlap_tokens": candidate.overlap_tokens,
        "uncached_tokens": candidate.uncached_tokens,
        "booked_tokens": candidate.booked_tokens,
        "in_flight": candidate.num_in_flight,
        "waiting": None if "num_waiting" in candidate.unreported else candidate.num_waiting,
        "kv_usage": None if "kv_usage" in candidate.unreported else candidate.kv_usage,
        "is_exact": candidate.is_exact,
        "assumed_tokens": candidate.assumed_tokens,
        "offloaded_tokens": {"+".join(media): tokens for media, tokens in candidate.offloaded.items()},
        "confidence": candidate.confidence,
    }


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {
        "result": outcome.result,
        "status": outcome.status,
        "ttft_s": outcome.ttft_s,
        "reported_prompt_tokens": outcome.reported_prompt_tokens,
        "reported_cached_tokens": outcome.reported_cached_tokens,
    }
