"""Reload of several processes: all of them, or none."""

import asyncio
from dataclasses import dataclass, field

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.processes.messages import Change, Prepare, decode_to_process
from gateway.processes.reload import Answer, answered, change, prepare


@dataclass
class Peer:
    """Peer with a scripted reply; `...` is no reply."""

    row: int
    says: object = None
    prepared: Answer | None = None
    heard: list[object] = field(default_factory=list)

    def send(self, message: bytes) -> None:
        self.heard.append(decode_to_process(message))
        if self.says is None or isinstance(self.says, str):
            asyncio.get_running_loop().call_soon(answered, self, self.says)


ASKED = Prepare(7, config_of(max_attempts=9), ["http://a:1"], [])


async def test_a_reload_accepted_by_all_is_committed() -> None:
    peers = [Peer(0), Peer(1)]
    await prepare(peers, ASKED)
    change(peers, 7)
    assert all(peer.heard == [ASKED, Change(7)] and peer.prepared is None for peer in peers)


async def test_a_reload_rejected_by_one_is_dropped() -> None:
    peers = [Peer(0), Peer(1, says="policy: no")]
    with pytest.raises(ConfigError, match="policy: no"):
        await prepare(peers, ASKED)
    assert [peer.heard for peer in peers] == [[ASKED], [ASKED]]


async def test_a_reload_without_a_reply_is_dropped() -> None:
    with pytest.raises(ConfigError, match="process 1 did not reply"):
        await prepare([Peer(0), Peer(1, says=...)], ASKED, timeout_s=0.01)


async def test_a_process_that_dies_does_not_reject_a_reload() -> None:
    dying = Peer(1, says=...)
    asyncio.get_running_loop().call_soon(answered, dying, None)
    await prepare([Peer(0), dying], ASKED)


async def test_a_late_reply_is_ignored() -> None:
    answered(Peer(0), "too late")
