import os
import subprocess
import sys

import pytest

from gateway.bookings import shared_memory
from gateway.bookings.shared_ledger import SharedLedger
from gateway.config import config_of, load
from gateway.core.errors import ConfigError
from gateway.core.worker import WorkerId
from tests.support.patience import patience

pytestmark = pytest.mark.process

W = WorkerId("w:1")
OTHER = """
import sys
from gateway.bookings import shared_memory
from gateway.bookings.shared_ledger import SharedLedger
from gateway.core.worker import WorkerId
ledger = SharedLedger(shared_memory.table(int(sys.argv[1]), 2), 1)
ledger.book(WorkerId("first here:1"), 1, 1)
ledger.book(WorkerId("w:1"), 20, 20)
print(ledger.load(WorkerId("w:1")))
"""


def test_another_process_sees_and_adds_to_the_load() -> None:
    file = shared_memory.create(2)
    ledger = SharedLedger(shared_memory.table(file, 2), 0)
    ledger.book(W, 100, 100)
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(file)],
        pass_fds=[file],
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert done.stdout.strip() == "Load(2, 120)", done.stderr
    assert ledger.load(W).booked_tokens == 120
    os.close(file)


HEARING = """
import sys
from gateway.bookings import shared_memory
print(shared_memory.become_subscriber(int(sys.argv[1])))
"""


def test_one_process_of_a_host_is_its_subscriber() -> None:
    file = shared_memory.create(2)
    assert shared_memory.become_subscriber(file) and shared_memory.become_subscriber(file)
    command = [sys.executable, "-c", HEARING, str(file)]
    done = subprocess.run(command, pass_fds=[file], capture_output=True, text=True, timeout=patience(60))
    assert done.stdout.strip() == "False", done.stderr
    os.close(file)


def test_remote_hosts_have_a_row_where_bookings_are_shared() -> None:
    alone, sharing = config_of(processes=3), config_of(processes=3, redis="redis://h:1")
    assert [shared_memory.num_rows(config) for config in (alone, sharing)] == [3, 4]
    assert shared_memory.view_alone(alone) is None
    assert shared_memory.view_alone(config_of(redis="redis://h:1", booking="own")) is None
    place = shared_memory.view_alone(sharing)
    assert place and (place.far_row, place.table.num_rows, place.become_subscriber()) == (1, 2, True)
    file = shared_memory.create(4)
    assert shared_memory.view_beside(sharing, file, 0, 4).far_row == 3
    assert shared_memory.view_beside(alone, file, 0, 4).far_row is None
    os.close(file)


@pytest.mark.parametrize("booking", ["shared", "atomic"])
def test_without_redis_bookings_cannot_be_shared(booking: str) -> None:
    with pytest.raises(ConfigError, match=f"booking: {booking} needs --redis"):
        shared_memory.num_rows(load({"booking": booking}, environ={}))


def test_a_table_begins_empty() -> None:
    file = shared_memory.create(3)
    assert repr(shared_memory.table(file, 3)) == "Table(rows=3, columns=0 of 4096)"
    os.close(file)


HOLDS_THE_LOCK = """
import sys
from gateway.bookings import shared_memory
with shared_memory.host_lock(int(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_host_lock_excludes_other_processes_for_a_bounded_time() -> None:
    file = shared_memory.create(2)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(file)],
        pass_fds=[file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout and other.stdout.readline() == "mine\n"
        assert not shared_memory.acquire_host_lock(file)
        with shared_memory.host_lock(
            file
        ):  # a process that was stopped while it decides does not stop the others
            pass
        assert not shared_memory.acquire_host_lock(file), "a lock that was not acquired is not released"
        other.communicate(timeout=patience(60))
    assert shared_memory.acquire_host_lock(file), "gone with its holder"
    os.close(file)


def test_quota_usage_and_bookings_are_in_one_file() -> None:
    file = shared_memory.create(2)
    place, other = (shared_memory.view_beside(config_of(processes=2), file, row, 2) for row in (0, 1))
    used, seen = place.quota_usage("t"), other.quota_usage("t")
    assert used and seen
    used.set_active(3)
    place.ledger.book(W, 100, 100)
    assert (seen.num_active_elsewhere(), other.ledger.load(W).booked_tokens) == (3, 100)
    shared_memory.quota_table(file, 2).release(0)
    assert seen.num_active_elsewhere() == 0
    os.close(file)
