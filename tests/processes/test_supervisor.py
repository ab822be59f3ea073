"""Decisions of the supervisor; tests/blackbox/test_processes.py has its effects."""

from gateway.config import config_of
from gateway.processes.supervisor import Supervisor


async def test_connections_are_accepted_only_once_a_process_is_ready() -> None:
    supervisor = Supervisor(config_of(processes=3, worker=["http://w:1"]))
    assert supervisor._taker() is None
    assert repr(supervisor) == "Supervisor(0: dead, 1: dead, 2: dead)"
    assert supervisor.added_workers == []
    await supervisor.stop(0)
