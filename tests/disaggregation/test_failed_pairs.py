"""Who is left out behind each failure: the one at fault soon, and nobody else for long."""

from itertools import product

import pytest

from gateway.core.worker import WorkerId
from gateway.disaggregation.failed_pairs import Tried

P1, P2, P3, D1, D2 = map(WorkerId, ("p1", "p2", "p3", "d1", "d2"))


def test_a_prefill_worker_that_failed_is_to_blame() -> None:
    tried = Tried()
    tried.prefill_failed(P1)
    assert not tried.turn()
    assert (tried.num, set(tried.left_out)) == (1, {P1})


def test_what_did_not_arrive_is_first_its_senders_fault() -> None:
    tried = Tried()
    assert not tried.transfer_failed(P1, D1)
    assert set(tried.left_out) == {P1}


def test_who_got_nothing_of_two_is_to_blame_and_they_are_not() -> None:
    tried = Tried()
    tried.transfer_failed(P1, D1)
    tried.transfer_failed(P2, D2)
    assert tried.transfer_failed(P3, D1)
    tried.blame(D1)
    assert set(tried.left_out) == {P2, D1}
    assert repr(tried) == "Tried(3, ['d1', 'p2'])"


@pytest.mark.parametrize("good", [*product((P1, P2), (D1, D2))])
def test_the_one_pair_that_can_is_found(good: tuple[WorkerId, WorkerId]) -> None:
    """Of two by two, whichever order they are tried in."""
    for order in (1, -1):
        tried, pairs = Tried(), [*product((P1, P2), (D1, D2))][::order]
        while True:
            left = [pair for pair in pairs if not set(pair) & set(tried.left_out)]
            if not left:
                assert tried.turn()
                continue
            if left[0] == good:
                break
            if tried.transfer_failed(*left[0]):
                tried.blame(left[0][1])
            assert tried.num < 4
