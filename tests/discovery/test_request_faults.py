"""Charges of failed requests, as tables of failures and answers of clients."""

import logging
from typing import cast

import pytest

from gateway.core.caller import Caller
from gateway.core.outcome import UNLOADED
from gateway.core.worker import WorkerId
from gateway.discovery.lifecycle import Lifecycle
from gateway.discovery.outlier_detection import OutlierRules, OutlierState
from gateway.discovery.request_faults import MAX_CLIENTS, MAX_KEYS, OTHER_KEYS, RequestFaults
from gateway.http.messages import HttpRequest
from gateway.upstream.plan import Execution
from tests.support.worlds.lifecycle import LifecycleWorld

A, B, C = WorkerId("a:1"), WorkerId("b:1"), WorkerId("c:1")


class Asked:
    """A request of a client, named by its key, or by its address."""

    def __init__(self, key: str = "", address: str = "") -> None:
        self.http = HttpRequest("POST", b"/v1/completions", [], b"")
        self.http.caller, self.http.client = Caller("t", key) if key else None, address
        self.log_id = "r"
        self.failed_at: tuple[WorkerId, ...] = ()

    @property
    def as_request(self) -> Execution:
        return cast(Execution, self)


class Charges:
    """A judge of failures, and the failures that count against each worker."""

    def __init__(self) -> None:
        self.of: dict[WorkerId, int] = {}
        self.silent: list[WorkerId] = []
        self.judge = RequestFaults(self._charge, self._acquit)

    def _charge(self, worker: WorkerId, reason: str, is_silent: bool) -> None:
        self.of[worker] = self.of.get(worker, 0) + 1
        self.silent += [worker] * is_silent

    def _acquit(self, worker: WorkerId, num: int) -> None:
        self.of[worker] -= num

    def fail(self, workers: str, request: Asked | None = None, key: str = "k") -> None:
        """Failures at workers by their letters, each of another request unless one is given; "." answers."""
        for letter in workers:
            one = request or Asked(key)
            if letter == ".":
                self.judge.answered(one.as_request)
            else:
                self.judge.failed(one.as_request, WorkerId(f"{letter}:1"), "it answered 500")


@pytest.mark.parametrize(
    ("course", "charged", "num_faults"),
    [
        ("a", {A: 1}, 0),
        ("aaaaa", {A: 5}, 0),  # others are not asked: it may be the worker
        ("a.a.a.b.a", {A: 4, B: 1}, 0),  # answers come from others: each is the worker's
        ("ab", {A: 0}, 1),
        ("aab", {A: 0}, 1),
        ("abcabcabc", {A: 0}, 8),
        ("ab.a", {A: 1}, 1),
        ("a.ab", {A: 1}, 1),  # what was charged before the answer stands
    ],
)
def test_failures_of_a_client_at_a_second_worker_are_its_own(
    course: str, charged: dict[WorkerId, int], num_faults: int
) -> None:
    charges = Charges()
    charges.fail(course)
    assert {worker: num for worker, num in charges.of.items() if num or worker in charged} == charged
    assert charges.judge.by_key == ({"k": num_faults} if num_faults else {})


def test_clients_are_judged_apart_by_key_or_address() -> None:
    charges = Charges()
    charges.fail("a", key="one")
    charges.fail("b", key="two")
    charges.fail("c", Asked(address="10.0.0.1"))
    charges.fail("a", Asked(address="10.0.0.2"))
    assert charges.of == {A: 2, B: 1, C: 1} and not charges.judge.by_key
    charges.fail("b", Asked(address="10.0.0.1"))
    assert charges.of == {A: 2, B: 1, C: 0} and charges.judge.by_key == {"none": 1}


def test_one_request_that_fails_at_two_workers_is_not_charged_to_either_nor_to_a_third() -> None:
    """Other requests of the client are answered in between."""
    charges, request = Charges(), Asked("k")
    charges.fail("a", request)
    charges.fail(".")
    charges.fail("b", request)
    charges.fail(".")
    charges.fail("c", request)
    assert charges.of == {A: 0}
    assert request.failed_at == (A, B, C) and charges.judge.by_key == {"k": 2}


def test_what_no_worker_has_seen_is_always_its_fault_and_an_unloaded_adapter_is_nobodys() -> None:
    charges, request = Charges(), Asked("k")
    for worker in (A, B, C):
        charges.judge.failed(
            request.as_request, worker, "cannot connect", was_sent=False, is_refused=worker != C
        )
    charges.judge.failed(request.as_request, A, UNLOADED)
    assert charges.of == {A: 1, B: 1, C: 1} and request.failed_at == ()
    assert charges.silent == [C]


def test_clients_and_keys_are_bounded() -> None:
    charges = Charges()
    for number in range(MAX_CLIENTS + 5):
        charges.fail("ab", key=f"k{number}")
    assert len(charges.judge._runs) == MAX_CLIENTS
    assert len(charges.judge.by_key) == MAX_KEYS + 1
    assert charges.judge.by_key[OTHER_KEYS] == MAX_CLIENTS + 5 - MAX_KEYS


def test_the_log_names_the_key_the_workers_and_the_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    charges = Charges()
    charges.fail("ab")
    assert caplog.messages == [
        "key k: requests fail on several workers; none is ejected for it; "
        "last on b:1 (it answered 500), request r"
    ]


def test_an_ejection_for_the_failures_of_one_client_ends_once_they_are_its_own() -> None:
    world = LifecycleWorld()
    world.join(*(f"{letter}:1" for letter in "abcd"))
    judge = cast(Lifecycle, world.lifecycle).faults
    for _ in range(2):
        judge.failed(Asked("k").as_request, A, "it answered 500")
    assert world.state(A) == "ejected"
    judge.failed(Asked("k").as_request, B, "it answered 500")
    world.lifecycle.looked(A, None)  # its next probe
    assert world.state(A) in ("active", "slow_start") and world.state(B) == "active"
    world.lifecycle.failed(A, "refused")
    assert world.state(A) != "ejected"  # as before: two in a row eject


def test_an_ejection_for_failures_of_others_too_stays() -> None:
    outlier = OutlierState(OutlierRules(num_failures=3))
    for _ in range(2):
        assert outlier.failed("x", 0) is None
    ejection = outlier.failed("x", 0)
    assert ejection is not None
    outlier.eject(ejection, 0.0)
    assert not outlier.acquit(2, 1.0) and not outlier.may_return(1.0)
    assert outlier.acquit(3, 1.0) and outlier.may_return(1.0)
