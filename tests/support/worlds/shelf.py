"""Store of a rank's blocks, with a clock that the test moves."""

from typing import Any

from gateway.core.blocks import root_hash
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.replication.codec import decode
from gateway.replication.rank_store import RankStore, RankSubscription
from tests.support.fakes import BLOCK_SIZE, END, FakeEngine, seq_frame

W = WorkerId("w:1")
ROOT = root_hash("root")


class ShelfWorld:
    def __init__(self, *, can_replay: bool = True, now: int = 1000) -> None:
        self.now = now
        self.store, assumed = RankStore(lambda: self.now), AssumedIndex()
        self.store.add_worker(W, ROOT, BLOCK_SIZE)
        assumed.add_worker(W, keep_s=1.0, max_blocks=1)
        self.rank = self.store.ranks[W]
        self.subscription = RankSubscription(
            W,
            engine=FakeEngine(),
            index=self.store,
            assumed=assumed,
            can_replay=can_replay,
            on_state=lambda worker, state: None,
        )
        self.reader = self.rank.journal.read()
        self.num_wakes = 0
        self.rank.changed.add(self.wake)

    def wake(self) -> None:
        self.num_wakes += 1

    def live(self, seq: int, body: bytes) -> None:
        self.subscription.live([b"kv", seq_frame(seq), body])

    def replay(self, *bodies: bytes) -> None:
        self.subscription.connected()
        for seq, body in enumerate(bodies):
            self.subscription.replayed([b"", b"kv", seq_frame(seq), body])
        self.subscription.replayed([b"", END, b""])

    def updates(self) -> list[Any]:
        updates = []
        while (data := self.reader.next()) is not None:
            updates.append(decode(data))
        return updates
