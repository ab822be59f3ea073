"""Workers excluded after each failure: the one at fault soon, and no other for long."""

from itertools import product

import pytest

from gateway.core.worker import WorkerId
from gateway.disaggregation.failed_pairs import FailedPairs

P1, P2, P3, D1, D2 = map(WorkerId, ("p1", "p2", "p3", "d1", "d2"))


def test_a_prefill_worker_that_failed_is_to_blame() -> None:
    tried = FailedPairs()
    tried.prefill_failed(P1)
    assert not tried.turn()
    assert (tried.num, set(tried.excluded)) == (1, {P1})


def test_a_failed_transfer_excludes_the_prefill_worker_first() -> None:
    tried = FailedPairs()
    assert not tried.transfer_failed(P1, D1)
    assert set(tried.excluded) == {P1}


def test_a_decode_worker_that_fails_with_two_senders_is_excluded_instead_of_them() -> None:
    tried = FailedPairs()
    tried.transfer_failed(P1, D1)
    tried.transfer_failed(P2, D2)
    assert tried.transfer_failed(P3, D1)
    tried.blame(D1)
    assert set(tried.excluded) == {P2, D1}
    assert repr(tried) == "FailedPairs(3, ['d1', 'p2'])"


@pytest.mark.parametrize("good", [*product((P1, P2), (D1, D2))])
def test_the_only_working_pair_is_found(good: tuple[WorkerId, WorkerId]) -> None:
    """Two by two workers, in any order of attempts."""
    for order in (1, -1):
        tried, pairs = FailedPairs(), [*product((P1, P2), (D1, D2))][::order]
        while True:
            left = [pair for pair in pairs if not set(pair) & set(tried.excluded)]
            if not left:
                assert tried.turn()
                continue
            if left[0] == good:
                break
            if tried.transfer_failed(*left[0]):
                tried.blame(left[0][1])
            assert tried.num < 4
