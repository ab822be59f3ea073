from collections.abc import Callable

import pytest

from gateway.core.blocks import BlockHash
from gateway.core.multimodal import Links
from gateway.core.worker import WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.sent_media import SentLinks

KEEP_S = 60.0
A, B = WorkerId("a:1"), WorkerId("b:1")
TURN = Links([BlockHash(1), BlockHash(2), BlockHash(3)], [500, 10, 20])


def test_leading_links_count_for_a_while_at_the_worker_they_were_sent_to() -> None:
    sent = SentLinks(AssumedIndex(), KEEP_S)
    assert sent.find(TURN, (A, B), 0.0) == {}
    sent.index.pin(A, TURN.hashes[:2])
    assert sent.find(TURN, (A, B), 0.0) == {A: 510}
    sent.index.unpin(A, TURN.hashes[:2], 1.0, was_run=True)
    assert sent.find(TURN, (A, B), KEEP_S) == {A: 510}
    assert sent.find(Links([BlockHash(9), *TURN.hashes], [1, 1, 1, 1]), (A, B), 2.0) == {}
    assert sent.find(TURN, (A, B), KEEP_S + 2.0) == {}


@pytest.mark.parametrize("forget", [AssumedIndex.reset_worker, AssumedIndex.drop_worker])
def test_reset_or_dropped_worker_has_no_images(
    forget: Callable[[AssumedIndex, WorkerId], None],
) -> None:
    assumed = AssumedIndex()
    sent = SentLinks(assumed, KEEP_S)
    assumed.add_worker(A, keep_s=1.0, max_blocks=10)
    sent.find(TURN, (A, B), 0.0)
    for worker in (A, B):
        sent.index.pin(worker, TURN.hashes[:2])
    forget(assumed, A)
    sent.index.unpin(A, TURN.hashes[:2], 1.0, was_run=True)  # of a request in flight meanwhile
    assert sent.find(TURN, (A, B), 1.0) == {B: 510}
    sent.index.pin(A, TURN.hashes)
    assert sent.find(TURN, (A, B), 2.0) == {A: 530, B: 510}


def test_shorter_keep_of_an_exact_stream_forgets_no_images() -> None:
    assumed = AssumedIndex()
    sent = SentLinks(assumed, KEEP_S)
    assumed.add_worker(A, keep_s=600.0, max_blocks=10)
    sent.find(TURN, (A,), 0.0)
    sent.index.pin(A, TURN.hashes)
    assumed.set_keep(A, 1.0)
    assert sent.find(TURN, (A,), 0.0) == {A: 530}
