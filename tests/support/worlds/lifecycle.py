"""Workers' standing: a fleet, a router by least load, and the lifecycle's view of them."""

import logging
import random
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.core.blocks import root_hash
from gateway.core.decision import Prompt
from gateway.core.fleet import Fleet
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId
from gateway.discovery.lifecycle import Lifecycle, RemainingWork
from gateway.discovery.outlier_detection import OutlierRules
from gateway.policies.least_load import LeastLoad
from gateway.requests.parsing import parse_request
from gateway.routing.router import Router
from tests.support.fakes import Known

A, B = WorkerId("a:1"), WorkerId("b:1")
REQUEST = parse_request("/v1/completions", b'{"model":"m","prompt":"x"}')


def worker_of(name: str, role: Role = Role.BOTH) -> Worker:
    transfer = None if role is Role.BOTH else Transfer("nixl")
    return Worker(WorkerId(name), f"http://{name}", (ServedModel("m", "m"),), role=role, transfer=transfer)


class LifecycleWorld:
    """Fleet, a router by least load, and the lifecycle's view of them."""

    def __init__(self, slow_start_s: float = 10.0) -> None:
        self.now = 0.0
        self.fleet, self.known = Fleet(), Known()
        self.router = Router(
            fleet=self.fleet,
            index=self.known.index,
            assumed=self.known.assumed,
            policy=LeastLoad(),
            tokenize=lambda request: Prompt(),
            clock=lambda: self.now,
            rng=random.Random(1),
        )
        self.fetching: Counter[WorkerId] = Counter()
        self.num_answered: Counter[WorkerId] = Counter()
        self.elsewhere: list[tuple[WorkerId, str]] = []
        load = self.router.ledger.load
        self.lifecycle = Lifecycle(
            self.fleet,
            RemainingWork(
                lambda worker: load(worker).num_in_flight,
                lambda worker: load(worker).booked_tokens,
                lambda worker: self.fetching[worker],
            ),
            num_answered=lambda worker: self.num_answered[worker],
            observers=self.router.observers,
            on_ejected=lambda worker, why: self.elsewhere.append((worker, why)),
            rules=OutlierRules(num_failures=2, eject_s=10.0, stalled_s=60.0),
            slow_start_s=slow_start_s,
            clock=lambda: self.now,
            call_later=lambda seconds, callback: self.timers.append((self.now + seconds, callback)),
        )
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [callback for at_s, callback in self.timers if at_s <= self.now]
        self.timers = [(at_s, callback) for at_s, callback in self.timers if at_s > self.now]
        for callback in due:
            callback()

    def join(self, *names: str, role: Role = Role.BOTH) -> None:
        for name in names:
            self.fleet.add(worker_of(name, role))
            self.known.index.add_worker(WorkerId(name), root_hash("m"), None)
            self.known.assumed.add_worker(WorkerId(name), keep_s=600.0, max_blocks=100)
            self.lifecycle.joined([worker_of(name, role)])

    def decide(self, times: int = 1, *, ends: bool = True) -> Counter[WorkerId]:
        got: Counter[WorkerId] = Counter()
        for _ in range(times):
            decision = self.router.decide(REQUEST)
            if ends:
                self.router.finish(decision)
            got[decision.worker.id] += 1
        return got

    def state(self, name: WorkerId) -> str:
        return str(self.lifecycle.describe(name)["state"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]
