"""Ports reserved by one process."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtest.ports import BLOCK, Ports, free_port, sim_ports


@pytest.fixture
def ports() -> Iterator[Ports]:
    claimed = Ports()
    yield claimed
    claimed.close()


def test_no_port_repeats_before_all_were_given(ports: Ports) -> None:
    found = [ports.free() for _ in range(BLOCK // 2)]
    assert len(set(found)) == len(found)


def test_an_occupied_port_is_skipped(ports: Ports) -> None:
    first = ports.free()
    with socket.create_server(("127.0.0.1", first + 1)):
        assert ports.free() > first + 1


def test_several_ports_are_consecutive_even_at_the_end_of_the_block(ports: Ports) -> None:
    num = BLOCK * 2 // 3
    found = [ports.free(num) for _ in range(3)]
    assert max(found) + num <= min(found) + BLOCK


def test_more_ports_than_exist_are_an_error(ports: Ports) -> None:
    with pytest.raises(OSError, match="no 201 ports in a row"):
        ports.free(BLOCK + 1)


def test_two_processes_share_no_port() -> None:
    code = "from loadtest.ports import free_port, BLOCK; print({free_port() for _ in range(BLOCK)})"
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert free_port() not in eval(reported)  # noqa: S307  a set of numbers


def test_a_simulated_engine_gets_a_port_for_each_rank() -> None:
    first, second = sim_ports(2), sim_ports(2)
    assert second["events_port"] not in (first["events_port"], first["events_port"] + 1)
    assert first.keys() == {"port", "events_port", "replay_port"}
    assert sim_ports(transfers=True).keys() - first.keys() == {"pd_port", "bootstrap_port"}
