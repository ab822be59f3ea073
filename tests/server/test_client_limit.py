"""Limit of open client connections."""

import logging
import os

import pytest

from gateway.runtime.descriptors import Descriptors
from gateway.runtime.rate_limited_log import EVERY_S
from gateway.server.client_limit import ClientLimit

FILES = Descriptors(1024)


class ClientLimitWorld:
    def __init__(self, files: Descriptors = FILES) -> None:
        self.num_open = 0
        self.now = 0.0
        self.room = ClientLimit(files, lambda: self.num_open, lambda: self.now)


def test_clients_are_accepted_up_to_the_limit() -> None:
    world = ClientLimitWorld()
    world.num_open = FILES.max_clients - 1
    assert world.room.has_one()
    world.num_open += 1
    assert not world.room.has_one()
    world.num_open -= 1
    assert world.room.has_one()


def test_a_high_file_number_stops_accepting_until_a_lower_one_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, lowest = ClientLimitWorld(), FILES.clients_end
    monkeypatch.setattr(os, "open", lambda path, flags: lowest)
    monkeypatch.setattr(os, "close", lambda file: None)
    world.room.took(FILES.clients_end - 1)
    assert world.room.has_one()
    world.room.took(FILES.clients_end)
    assert not world.room.has_one()
    lowest -= 1
    assert world.room.has_one()

    def none_left(path: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", none_left)
    world.room.took(FILES.limit - 1)
    assert not world.room.has_one()
    assert "tight=True" in repr(world.room)


def test_a_reached_limit_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    world = ClientLimitWorld()
    world.num_open = FILES.max_clients
    with caplog.at_level(logging.WARNING, "kvgate"):
        for _ in range(10):
            world.room.has_one()
            world.now += EVERY_S / 11
        assert len(caplog.records) == 1
        world.now += EVERY_S
        world.room.has_one()
    assert len(caplog.records) == 2
    assert f"the admin port ({FILES.max_clients} connections are open)" in caplog.text
