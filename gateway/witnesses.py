"""Those who look on (`Witness` in `core/decision.py`): told of each decision, and of what became of it."""

import logging
from collections.abc import Sequence

from gateway.core.blocks import BlockHash
from gateway.core.decision import Decision, Prompt, Witness
from gateway.core.request import InferenceRequest
from gateway.core.sse import Usage

log = logging.getLogger("kvgate.router")


def tell_decided(
    witnesses: list[Witness],
    decision: Decision,
    prompt: Prompt,
    blocks: Sequence[Sequence[BlockHash]],
    request: InferenceRequest,
) -> None:
    for witness in tuple(witnesses):
        try:
            witness.decided(decision, prompt, blocks, request)
        except Exception:  # noqa: BLE001  see _dismiss
            _dismiss(witnesses, witness)


def tell_answered(
    witnesses: list[Witness], decision: Decision, blocks: Sequence[BlockHash], usage: Usage
) -> None:
    for witness in tuple(witnesses):
        try:
            witness.answered(decision, blocks, usage)
        except Exception:  # noqa: BLE001  see _dismiss
            _dismiss(witnesses, witness)


def _dismiss(witnesses: list[Witness], failed: Witness) -> None:
    """A bug in one who only looks on must cost no request, nor a line in the log for each."""
    witnesses.remove(failed)
    log.exception("%r failed, and sees no more decisions until the gateway is restarted", failed)
