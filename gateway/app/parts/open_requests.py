"""Requests under way, as the parts that watch workers see them."""

from gateway.core.worker import WorkerId
from gateway.disaggregation.legs import LegServices
from gateway.proxy.dispatch import Dispatch


class OpenRequests:
    """Requests at workers; there are none before `attach` names what has them."""

    def __init__(self) -> None:
        self._dispatch: Dispatch | None = None
        self._legs: LegServices | None = None

    def attach(self, dispatch: Dispatch, legs: LegServices) -> None:
        self._dispatch, self._legs = dispatch, legs

    def worker_down(self, worker: WorkerId, why: str) -> None:
        """Retry elsewhere the requests that a worker that is down has not begun to answer."""
        if self._dispatch is not None:
            self._dispatch.worker_down(worker, why)

    def num_fetching(self, worker: WorkerId) -> int:
        """Return the requests with a prompt at this worker that their decode workers have yet to fetch."""
        return self._legs.num_fetching(worker) if self._legs is not None else 0
