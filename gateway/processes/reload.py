"""Several processes change together: each says first whether it can, and then all do, or none.

    Prepare ─► each process makes what it needs ─► Prepared ─► all can: Change ─► each swaps it in, at once
                                                             └─ one refuses, or says nothing: none changes

A process that dies meanwhile is no refusal: the one in its place begins with the configuration of then.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.core.errors import ConfigError
from gateway.processes.messages import Change, Prepare, encode

ANSWER_S = 30.0
"""To read a policy file and try it out takes a moment, on a busy machine some more."""

Answer = asyncio.Future[str | None]


class Peer(Protocol):
    """One process: what it is told, and where its answer goes: None, or why it refuses."""

    prepared: Answer | None

    @property
    def row(self) -> int: ...
    def tell(self, message: bytes) -> None: ...


async def prepare(peers: Sequence[Peer], message: Prepare, timeout_s: float = ANSWER_S) -> None:
    """Raises ConfigError where one refuses, or does not answer; then none is to change."""
    loop = asyncio.get_running_loop()
    answers: list[Answer] = []
    for peer in peers:
        peer.prepared = loop.create_future()
        answers.append(peer.prepared)
        peer.tell(encode(message))
    late = (await asyncio.wait(answers, timeout=timeout_s))[1] if answers else ()
    silent = ", ".join(str(peer.row) for peer in peers if peer.prepared in late)
    for peer in peers:
        peer.prepared = None
    if silent:
        raise ConfigError(f"process {silent} does not say whether it can take it")
    refusals = [refusal for answer in answers if (refusal := answer.result()) is not None]
    if refusals:
        raise ConfigError(refusals[0])


def change(peers: Sequence[Peer], number: int) -> None:
    """What was prepared under that number."""
    for peer in peers:
        peer.tell(encode(Change(number)))


def answered(peer: Peer, refusal: str | None) -> None:
    """It says so; or it is gone, which is no refusal."""
    if peer.prepared is not None and not peer.prepared.done():
        peer.prepared.set_result(refusal)
