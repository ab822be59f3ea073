"""Topology: the nearest workers with room, since another zone costs money, and each hop time.

The location of a worker is `[fleet] topology = ["URL=zone1/rack2"]`, the gateway's `[fleet] location =
"zone1/rack2"`.
"""

from collections.abc import Sequence

from gateway.core.decision import Candidate, Query
from gateway.core.pd_pairs import nearness
from gateway.core.worker import FULL_KV


class TopologyFilter:
    """Keeps the workers with room that share the most parts of `place`; without a place, all."""

    def __init__(self, place: str = "") -> None:
        self._place = place

    def keep(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        if not self._place:
            return candidates
        nearest: list[Candidate] = []
        most = -1
        for candidate in candidates:
            if candidate.num_waiting or candidate.kv_usage >= FULL_KV:
                continue
            shared = nearness(self._place, candidate.worker.topology)
            if shared > most:
                nearest, most = [], shared
            if shared == most:
                nearest.append(candidate)
        return nearest
