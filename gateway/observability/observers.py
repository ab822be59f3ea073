"""Those who look on: told of each decision, of what the engine then told, and of how it ended.

    decided ─► answered (where the engine told its usage) ─► finished (each attempt, whatever became of it)

Called on the data path: no I/O, microseconds. A bug in one who only looks on costs no request, nor a line in
the log for each: it is told no more.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decision, Prompt
from gateway.core.outcome import Outcome
from gateway.core.requests.request import InferenceRequest
from gateway.core.usage import Usage

log = logging.getLogger("kvgate.router")

Decided = Callable[[Decision, Prompt, Sequence[Sequence[BlockHash]], InferenceRequest], None]
"""With the hashes of each prompt's full blocks, empty where its tokens are not known."""
Answered = Callable[[Decision, Sequence[BlockHash], Usage], None]
"""The end of an answer that told its usage, with the blocks of the request's last prompt."""
Finished = Callable[[Decision, Outcome], None]


class Witnesses:
    """Who is told of what; the lists are in the order in which they are told."""

    def __init__(self) -> None:
        self.decided: list[Decided] = []
        self.answered: list[Answered] = []
        self.finished: list[Finished] = []

    def __repr__(self) -> str:
        return f"Witnesses({len(self.decided)}, {len(self.answered)}, {len(self.finished)})"

    def tell_decided(
        self,
        decision: Decision,
        prompt: Prompt,
        blocks: Sequence[Sequence[BlockHash]],
        request: InferenceRequest,
    ) -> None:
        for tell in tuple(self.decided):
            try:
                tell(decision, prompt, blocks, request)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.decided, tell)

    def tell_answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        for tell in tuple(self.answered):
            try:
                tell(decision, blocks, usage)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.answered, tell)

    def tell_finished(self, decision: Decision, outcome: Outcome) -> None:
        for tell in tuple(self.finished):
            try:
                tell(decision, outcome)
            except Exception:  # noqa: BLE001  see dismiss
                dismiss(self.finished, tell)


def dismiss(told: list[Any], failed: object) -> None:
    """Called where it raised: a bug in one who only looks on costs no request, nor a line for each."""
    told.remove(failed)
    log.exception("%r failed, and is told no more until the gateway is restarted", failed)
