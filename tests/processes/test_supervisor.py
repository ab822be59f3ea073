"""Decisions of the supervisor; its effects are tested in tests/blackbox/test_processes.py."""

from gateway.config import config_of
from gateway.processes.supervisor import Supervisor


async def test_nobody_takes_connections_before_a_process_is_ready() -> None:
    supervisor = Supervisor(config_of(processes=3, worker=["http://w:1"]))
    assert supervisor._taker() is None
    assert repr(supervisor) == "Supervisor(0: dead, 1: dead, 2: dead)"
    assert supervisor.added_workers == []
    await supervisor.stop(0)
