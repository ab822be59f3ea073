from gateway.core.ledger import REQUEST_TOKENS
from gateway.costs.token_work import work_ahead
from tests.policies.contract import candidate


def test_work_ahead_counts_own_bookings_and_reported_requests_once() -> None:
    assert work_ahead(candidate("a", booked=10, in_flight=2, waiting=1)) == 10 + 2 * REQUEST_TOKENS
    assert work_ahead(candidate("a", in_flight=1, waiting=5)) == 5 * REQUEST_TOKENS
