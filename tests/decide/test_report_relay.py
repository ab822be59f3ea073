"""Reports between processes of a gateway: one answer each, of the process with the decision or of none."""

import asyncio

import pytest

from gateway.decide import report_relay
from gateway.decide.report_relay import ReportRelay


def related() -> tuple[ReportRelay, list[tuple[int, bytes]]]:
    sent: list[tuple[int, bytes]] = []
    return ReportRelay(lambda number, report: sent.append((number, report)), asyncio.get_running_loop()), sent


async def test_each_report_has_the_answer_to_its_number() -> None:
    relay, sent = related()
    answers: list[tuple[str, int | None]] = []
    relay.ask(b"one", lambda result: answers.append(("one", result)))
    relay.ask(b"two", lambda result: answers.append(("two", result)))
    (first, _), (second, report) = sent
    assert report == b"two" and first != second
    relay.answered(second, 0)
    relay.answered(first, 1)
    relay.answered(first, 0)
    assert answers == [("two", 0), ("one", 1)] and repr(relay) == "ReportRelay(0 waiting)"


async def test_a_decision_of_no_process_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_relay, "WAIT_S", 0.0)
    relay, _ = related()
    answered: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    relay.ask(b"one", answered.set_result)
    assert await answered is None


async def test_no_more_wait_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_relay, "MAX_WAITING", 0)
    relay, sent = related()
    answers: list[int | None] = []
    relay.ask(b"one", answers.append)
    assert answers == [None] and not sent


async def test_reports_of_others_are_applied_once_a_service_is_attached() -> None:
    relay, _ = related()
    assert relay.apply(b"one") is None
    relay.attach(len)
    assert relay.apply(b"one") == 3
