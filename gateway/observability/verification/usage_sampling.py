"""Which streams are asked for their usage where the client does not want it (`--verify`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.engine import StreamUsage
from gateway.core.worker import Worker, WorkerId
from gateway.http.usage_injection import UnaskedScanner

NEW_STREAMS = 32
"""A worker's first ones are all asked: what is wrong from the start is seen at once."""
SAMPLE = 16
"""Later one in so many: what it costs a stream is two searches in each chunk."""


MAX_DOUBTED = 512
"""Streams that are all asked while their worker is in doubt. What so many did not settle is told of by then;
one in SAMPLE will show that it is over."""


@dataclass(slots=True, eq=False)
class _Asked:
    """How many of a worker's streams could be asked, and how many since it is in doubt. Another process
    behind the address is another `worker`."""

    worker: Worker
    num_streams: int = 0
    num_doubted: int = 0


class Asking:
    """`mode` is "off", "auto" or "all"; `usage` tells of each engine, by name, how it can be asked;
    `in_doubt` says whether predictions for a worker were wrong lately."""

    def __init__(
        self, mode: str, usage: Mapping[str, StreamUsage], in_doubt: Callable[[WorkerId], bool]
    ) -> None:
        self._mode = mode
        self._usage = usage
        self._in_doubt = in_doubt
        self._asked: dict[WorkerId, _Asked] = {}

    def ask(self, worker: Worker, is_needed: bool = False) -> UnaskedScanner | None:
        """What takes the usage out of the stream again, if the worker is to be asked for it. `is_needed`: a
        tenant's tokens are counted."""
        usage = self._usage.get(worker.engine, _UNKNOWN)
        if is_needed and usage.can_be_asked:
            return UnaskedScanner(keeps_null=usage.writes_null)
        if self._mode == "off" or (self._mode == "auto" and not self._is_due(worker, usage)):
            return None
        return UnaskedScanner(keeps_null=usage.writes_null)

    def _is_due(self, worker: Worker, usage: StreamUsage) -> bool:
        if not usage.can_be_asked:
            return False
        asked = self._asked.get(worker.id)
        if asked is None or asked.worker is not worker:
            asked = self._asked[worker.id] = _Asked(worker)
        asked.num_streams += 1
        num = asked.num_streams
        asked.num_doubted = asked.num_doubted + 1 if self._in_doubt(worker.id) else 0
        return num <= NEW_STREAMS or num % SAMPLE == 0 or 0 < asked.num_doubted <= MAX_DOUBTED


_UNKNOWN = StreamUsage(can_be_asked=False)
