"""Shares of the open file limit."""

import sys

import pytest

from gateway.runtime.descriptors import (
    FILES_PER_REQUEST,
    MAX_EVENT_SOCKETS,
    OWN_FILES,
    SOCKETS_PER_FEED,
    Descriptors,
)


@pytest.mark.parametrize("limit", [8, 64, 128, 256, 1024, 4096, 65536, 1 << 20, sys.maxsize])
def test_shares_end_with_clients_then_workers_then_the_rest(limit: int) -> None:
    files = Descriptors(limit)
    assert files.clients_end < files.workers_end < limit
    assert files.max_clients >= 1
    if limit >= 128:
        assert files.clients_end > OWN_FILES
        used = OWN_FILES + files.max_clients * FILES_PER_REQUEST
        assert used <= files.workers_end, "each client has a worker"


@pytest.mark.parametrize(
    ("limit", "num"), [(64, 42), (1024, 42), (8192, 170), (65536, 256), (sys.maxsize, 256)]
)
def test_the_ranks_of_one_endpoint_get_a_quarter_of_the_event_sockets(limit: int, num: int) -> None:
    files = Descriptors(limit)
    assert files.max_feeds == num
    assert 4 * num * SOCKETS_PER_FEED <= files.num_event_sockets <= MAX_EVENT_SOCKETS


def test_most_of_a_high_limit_is_for_clients() -> None:
    few, many = Descriptors(128), Descriptors(65536)
    assert (few.max_clients, few.num_kept, few.max_calls) == (36, 24, 8)
    assert (many.max_clients, many.num_kept, many.max_calls) == (32_602, 300, 100)
