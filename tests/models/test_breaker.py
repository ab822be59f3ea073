"""Circuit breaker of a worker's `/tokenize`."""

from gateway.models.breaker import MAX_REST_S, NUM_FAILURES, REST_S, CircuitBreaker


def broken(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    opened = [breaker.failed(at) for _ in range(NUM_FAILURES)]
    assert opened == [False] * (NUM_FAILURES - 1) + [True]
    return breaker


def test_failures_in_a_row_open_the_breaker() -> None:
    breaker = broken()
    assert breaker.is_open(REST_S / 2)
    assert not breaker.may_ask(REST_S / 2)
    assert not breaker.is_open(REST_S)


def test_an_answer_between_failures_resets_the_count() -> None:
    breaker = CircuitBreaker()
    for _ in range(10):
        for _ in range(NUM_FAILURES - 1):
            breaker.failed(0.0)
        breaker.answered()
    assert breaker.may_ask(0.0)


def test_after_a_rest_one_request_tries_and_the_others_wait_for_its_result() -> None:
    breaker = broken()
    assert [breaker.may_ask(REST_S) for _ in range(3)] == [True, False, False]
    breaker.answered()
    assert [breaker.may_ask(REST_S) for _ in range(3)] == [True, True, True]


def test_a_try_without_a_result_does_not_block_the_breaker() -> None:
    breaker = broken()
    assert breaker.may_ask(REST_S)
    assert breaker.may_ask(2 * REST_S)


def test_each_rest_is_longer_up_to_a_bound() -> None:
    breaker, now, rests = broken(), 0.0, []
    for _ in range(8):
        began = now
        while breaker.is_open(now):
            now += 0.5
        rests.append(now - began)
        assert breaker.may_ask(now)
        breaker.failed(now)
    assert rests == [2, 4, 8, 16, 32, 60, 60, MAX_REST_S]
    breaker.answered()
    assert repr(breaker) == "CircuitBreaker(0 failures in a row)"
