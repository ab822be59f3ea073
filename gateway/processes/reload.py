"""Two-phase reload of several processes: each first reports whether it can change, and then all do, or none.

    Prepare ─► each process makes what it needs ─► Prepared ─► all can: Change ─► each swaps it in, at once
                                                      └─ one refuses, or does not reply: none changes

A process that dies meanwhile is no refusal: its replacement begins with the configuration of then.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.core.errors import ConfigError
from gateway.processes.messages import Change, Prepare, encode

ANSWER_S = 30.0
"""Seconds for the replies: reading and testing a policy file takes a moment, on a busy machine some more."""

Answer = asyncio.Future[str | None]


class Peer(Protocol):
    """Process to reload: `send` sends it a message, and its reply is None or the reason for a refusal."""

    prepared: Answer | None

    @property
    def row(self) -> int: ...
    def send(self, message: bytes) -> None: ...


async def prepare(peers: Sequence[Peer], message: Prepare, timeout_s: float = ANSWER_S) -> None:
    """Prepare all. Raises ConfigError where one refuses, or does not reply; then none is to change."""
    loop = asyncio.get_running_loop()
    answers: list[Answer] = []
    for peer in peers:
        peer.prepared = loop.create_future()
        answers.append(peer.prepared)
        peer.send(encode(message))
    late = (await asyncio.wait(answers, timeout=timeout_s))[1] if answers else ()
    silent = ", ".join(str(peer.row) for peer in peers if peer.prepared in late)
    for peer in peers:
        peer.prepared = None
    if silent:
        raise ConfigError(f"process {silent} did not reply to the new configuration")
    refusals = [refusal for answer in answers if (refusal := answer.result()) is not None]
    if refusals:
        raise ConfigError(refusals[0])


def change(peers: Sequence[Peer], number: int) -> None:
    """Apply the configuration prepared under that number."""
    for peer in peers:
        peer.send(encode(Change(number)))


def answered(peer: Peer, refusal: str | None) -> None:
    """Record the reply of a process; a process that is gone is no refusal."""
    if peer.prepared is not None and not peer.prepared.done():
        peer.prepared.set_result(refusal)
