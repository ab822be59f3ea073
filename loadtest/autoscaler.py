"""Autoscaler in virtual time: what KEDA and its HPA do with the advice, and pods that start cold.

    each POLL_S   replicas = value, rounded up, where that is not within TOLERANCE of what there is
    more          pods that join after COLD_START_S
    fewer         pods that have not started yet go first, then the latest, as a ReplicaSet chooses

The limits of the HPA to a rise are its defaults: twice the pods, or four more. It does not wait before a
fall, as in `deploy/keda/scaledobject.yaml`.
"""

import math
import random
from collections.abc import Callable

from gateway.core.worker import WorkerId
from gateway.scaling.advice import Advice
from loadtest.scaled_fleet import ScaledFleet

POLL_S, COLD_START_S = (15.0, 30.0), (60.0, 120.0)
TOLERANCE = 0.1
MOST_MORE, MOST_TIMES = 4, 2


def replicas(current: int, value: float, most: int) -> int:
    """Replicas that an HPA with an average value of 1 asks for."""
    if abs(value / current - 1.0) <= TOLERANCE:
        return current
    return max(1, min(math.ceil(value - 1e-9), max(current + MOST_MORE, MOST_TIMES * current), most))


class Autoscaler:
    """Autoscaler of a fleet; `on_change` gets each new number of replicas."""

    def __init__(self, fleet: ScaledFleet, most: int, seed: int) -> None:
        self._fleet, self._most = fleet, most
        self._chance = random.Random(seed)
        self._started: list[WorkerId] = [member.worker.id for member in fleet.fleet]
        self._starting: list[object] = []
        self._poll_at_s = 0.0
        self._paid_until_s = 0.0
        self.num_events = 0
        self.paid_s = 0.0
        """Seconds of all pods, those included in which they start."""

    def __repr__(self) -> str:
        return f"Autoscaler({self.num_replicas} replicas, {self.num_events} events)"

    @property
    def num_replicas(self) -> int:
        return len(self._started) + len(self._starting)

    def look(self, advice: Advice) -> None:
        """Look at the advice, where it is time to."""
        now = self._fleet.clock.now
        if now < self._poll_at_s:
            return
        self.pay(now)
        self._poll_at_s = now + self._chance.uniform(*POLL_S)
        wanted = replicas(self.num_replicas, advice.num_desired, self._most)
        if wanted != self.num_replicas:
            self.num_events += 1
        while self.num_replicas < wanted:
            self._start(now)
        while self.num_replicas > wanted:
            if self._starting:
                self._starting.pop()
            else:
                self._fleet.leave(self._started.pop())

    def pay(self, now: float) -> None:
        """Count the pods until now."""
        self.paid_s += self.num_replicas * (now - self._paid_until_s)
        self._paid_until_s = now

    def _start(self, now: float) -> None:
        pod = object()
        self._starting.append(pod)
        self._fleet.clock.at(now + self._chance.uniform(*COLD_START_S), self._joins(pod))

    def _joins(self, pod: object) -> Callable[[], None]:
        def join() -> None:
            if pod in self._starting:  # else it was not wanted any more
                self._starting.remove(pod)
                self._started.append(self._fleet.join())

        return join
