"""Usage sampling (`--usage-injection`): requests usage on some streams of clients that did not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.engine import StreamUsage
from gateway.core.worker import Worker, WorkerId
from gateway.http.usage_injection import InjectedUsageScanner

NEW_STREAMS: Final = 32
"""First streams of a worker, all sampled: a worker that is wrong from the start is noticed at once."""
SAMPLE: Final = 16
"""Later, one in so many streams is sampled; a sampled stream costs two searches in each chunk."""


MAX_DOUBTED: Final = 512
"""Limit on streams that are all sampled while their worker is in doubt. A lasting error has been reported by
then; one in SAMPLE streams is enough to notice its end."""


@dataclass(slots=True, eq=False)
class _Sampled:
    """Number of a worker's streams that could be sampled, and the number since it has been in doubt. A
    restarted process at the same address is another `worker`."""

    worker: Worker
    num_streams: int = 0
    num_doubted: int = 0


class UsageSampling:
    """Chooses the streams to sample. `mode` is "off", "auto" or "all"; `usage` describes usage reports by
    engine name; `in_doubt` is true for a worker with wrong predictions lately."""

    def __init__(
        self, mode: str, usage: Mapping[str, StreamUsage], in_doubt: Callable[[WorkerId], bool]
    ) -> None:
        self._mode = mode
        self._usage = usage
        self._in_doubt = in_doubt
        self._asked: dict[WorkerId, _Sampled] = {}

    def ask(self, worker: Worker, is_needed: bool = False) -> InjectedUsageScanner | None:
        """A scanner that removes the usage from the stream, if the worker is to report it; else None.
        `is_needed`: a tenant's tokens are counted."""
        usage = self._usage.get(worker.engine, _UNKNOWN)
        if is_needed and usage.can_be_asked:
            return InjectedUsageScanner(keeps_null=usage.writes_null)
        if self._mode == "off" or (self._mode == "auto" and not self._is_due(worker, usage)):
            return None
        return InjectedUsageScanner(keeps_null=usage.writes_null)

    def _is_due(self, worker: Worker, usage: StreamUsage) -> bool:
        if not usage.can_be_asked:
            return False
        asked = self._asked.get(worker.id)
        if asked is None or asked.worker is not worker:
            asked = self._asked[worker.id] = _Sampled(worker)
        asked.num_streams += 1
        num = asked.num_streams
        asked.num_doubted = asked.num_doubted + 1 if self._in_doubt(worker.id) else 0
        return num <= NEW_STREAMS or num % SAMPLE == 0 or 0 < asked.num_doubted <= MAX_DOUBTED


_UNKNOWN: Final = StreamUsage(can_be_asked=False)
