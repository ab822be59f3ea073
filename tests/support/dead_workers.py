"""Death of a test process of pytest-xdist, without an end of the whole run.

The controller hears of a death by an event, fails the test that ran, and starts another process. What it
sends to the dead one before that event raised OSError, which ended the run (xdist 3.8). It is dropped here:
with the event, what the dead process had not run is handed out again.
"""

from contextlib import suppress
from typing import Any


def install() -> None:
    """Outlive dead test processes from now on."""
    from xdist.workermanage import WorkerController  # not before pytest has loaded it as its plugin

    send = WorkerController.sendcommand

    def send_if_alive(self: WorkerController, name: str, **arguments: Any) -> None:
        with suppress(OSError):
            send(self, name, **arguments)

    WorkerController.sendcommand = send_if_alive
