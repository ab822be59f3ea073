from gateway.core.blocks import BlockHash
from gateway.core.media import Links
from gateway.core.worker import WorkerId
from gateway.index.sent import KEEP_S, SentLinks

A, B = WorkerId("a:1"), WorkerId("b:1")
TURN = Links([BlockHash(1), BlockHash(2), BlockHash(3)], [500, 10, 20])


def test_leading_links_count_for_who_was_sent_them_and_for_a_while() -> None:
    sent = SentLinks()
    assert sent.find(TURN, (A, B), 0.0) == {}
    sent.index.pin(A, TURN.hashes[:2])
    assert sent.find(TURN, (A, B), 0.0) == {A: 510}
    sent.index.unpin(A, TURN.hashes[:2], 1.0, was_run=True)
    assert sent.find(TURN, (A, B), KEEP_S) == {A: 510}
    assert sent.find(Links([BlockHash(9), *TURN.hashes], [1, 1, 1, 1]), (A, B), 2.0) == {}
    assert sent.find(TURN, (A, B), KEEP_S + 2.0) == {}
