"""Observers of routing: notified of each decision, of the token usage in its answer, and of its end.

    decided ─► answered (where the engine reported its usage) ─► finished (each attempt, whatever its outcome)

Called on the data path: no I/O, microseconds. An observer that raises is logged once and disabled until the
restart: a bug in it costs no request and does not flood the log.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decided, Decision
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage

log = logging.getLogger("kvgate.router")

OnDecided = Callable[[Decided], None]
OnAnswered = Callable[[Decision, Sequence[BlockHash], Usage], None]
"""Called at the end of an answer with reported usage; the blocks are those of the request's last prompt."""
OnFinished = Callable[[Decision, Outcome], None]


class Observers:
    """Callbacks by event, called in the order of each list."""

    def __init__(self) -> None:
        self.decided: list[OnDecided] = []
        self.answered: list[OnAnswered] = []
        self.finished: list[OnFinished] = []

    def __repr__(self) -> str:
        return f"Observers({len(self.decided)}, {len(self.answered)}, {len(self.finished)})"

    def add(
        self, decided: OnDecided | None, answered: OnAnswered | None, finished: OnFinished | None
    ) -> None:
        """Add the callbacks of one observer behind those of the others."""
        if decided is not None:
            self.decided.append(decided)
        if answered is not None:
            self.answered.append(answered)
        if finished is not None:
            self.finished.append(finished)

    def notify_decided(self, decided: Decided) -> None:
        for observer in tuple(self.decided):
            try:
                observer(decided)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.decided, observer)

    def notify_answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        for observer in tuple(self.answered):
            try:
                observer(decision, blocks, usage)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.answered, observer)

    def notify_finished(self, decision: Decision, outcome: Outcome) -> None:
        for observer in tuple(self.finished):
            try:
                observer(decision, outcome)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.finished, observer)


def dismiss(observers: list[Any], failed: object) -> None:
    """Remove an observer that raised, and log the exception; called in the handler of that exception."""
    observers.remove(failed)
    log.exception("observer %r raised; disabled until restart", failed)
