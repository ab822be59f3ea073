"""Decision log: the fields of its records, and its bounds."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.request_fields import RequestView
from gateway.core.decision import PrefillChoice
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.value import replace
from gateway.core.worker import LOAD_FIGURES
from gateway.routing.decision_log import CANDIDATE_BYTES, MAX_NAME_CHARS, DecisionLog
from tests.support.fakes import decision


def usage() -> Usage | None:
    return read_usage(b'{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":48}}}')


def test_a_record_has_the_numbers_of_every_candidate() -> None:
    records = DecisionLog()
    records.add(decision("d1", "a:1", "b:1"), b"client's \xe9")
    record = records.explain("d1")
    assert record == {
        "id": "d1",
        "request_id": "client's \u00e9",
        "model": "m",
        "policy": "p",
        "worker": "a:1",
        "reason": "because",
        "attempt": 1,
        "prompt_tokens": 100,
        "overlap_tokens": 64,
        "confirmed_tokens": 0,
        "tokenized_by": "ids",
        "queued_s": 0.0,
        "timings_us": {"prompt": 250.0, "hash": 0.0, "index": 0.0, "policy": 0.0},
        "predicted_ttft_s": None,
        "candidates": [
            {
                "worker": name,
                "cost": float(i),
                "overlap_tokens": i,
                "uncached_tokens": 100 - i,
                "booked_tokens": 10 * i,
                "in_flight": i,
                "waiting": i,
                "kv_usage": i / 10,
                "is_exact": i == 0,
                "assumed_tokens": 0,
                "offloaded_tokens": {},
                "confidence": 1.0,
            }
            for i, name in enumerate(["a:1", "b:1"])
        ],
        "disaggregation": None,
        "outcome": None,
    }
    assert json.loads(msgspec.json.encode(record)) == record


def test_load_that_an_engine_does_not_report_is_null() -> None:
    records, made = DecisionLog(), decision("d1", "a:1")
    silent = replace(made.candidates[0], unreported=frozenset(LOAD_FIGURES))
    records.add(replace(made, candidates=(silent,)))
    record = records.explain("d1")
    assert record is not None
    assert (record["candidates"][0]["waiting"], record["candidates"][0]["kv_usage"]) == (None, None)


def test_a_disaggregated_request_shows_both_predictions_and_prefill_candidates() -> None:
    records, made = DecisionLog(), decision("d1", "d:1", "p:1")
    prefill = made.candidates[1]
    made_split = PrefillChoice("lower predicted TTFT with a transfer", prefill, 0.5, 0.25, (prefill,))
    records.add(replace(made, split=made_split))
    record = records.explain("d1")
    assert record is not None
    split = record["disaggregation"]
    assert (split["prefill_worker"], split["reason"]) == ("p:1", "lower predicted TTFT with a transfer")
    assert (split["overlap_tokens"], split["direct_ttft_s"], split["disaggregated_ttft_s"]) == (1, 0.5, 0.25)
    assert [candidate["worker"] for candidate in split["candidates"]] == ["p:1"]


def test_terms_of_costs_are_shown_where_the_policy_explains_them() -> None:
    records = DecisionLog()
    records.add(replace(decision("d1", "a:1", "b:1"), ttft_s=0.5))
    record = records.explain("d1", lambda decision: [{"prefill_s": 0.1}, {"prefill_s": 0.2}])
    assert record is not None and record["predicted_ttft_s"] == 0.5
    assert [each["terms"] for each in record["candidates"]] == [{"prefill_s": 0.1}, {"prefill_s": 0.2}]
    record = records.explain("d1", lambda decision: ())
    assert record is not None and "terms" not in record["candidates"][0]


def test_a_policy_without_terms_has_no_costs() -> None:
    records = DecisionLog()
    records.add(replace(decision(), terms=()))
    record = records.explain("d1")
    assert record is not None
    assert [candidate["cost"] for candidate in record["candidates"]] == [None]


def test_the_outcome_is_added_to_the_decision() -> None:
    records = DecisionLog()
    records.add(decision("d1"))
    records.finish(decision("d1"), "ended", 200, 0.25, usage())
    record = records.explain("d1")
    assert record is not None
    assert record["outcome"] == {
        "result": "ended",
        "status": 200,
        "ttft_s": 0.25,
        "reported_prompt_tokens": 100,
        "reported_cached_tokens": 48,
    }
    assert record["worker"] == "w:1"


def test_an_outcome_without_an_answer_has_no_tokens() -> None:
    records = DecisionLog()
    records.add(decision("d1"))
    records.finish(decision("d1"), "client_disconnected", 499, None, None)
    record = records.explain("d1")
    assert record is not None
    assert set(record["outcome"].values()) == {"client_disconnected", 499, None}


def test_unknown_or_dropped_ids_are_none() -> None:
    records = DecisionLog(max_records=1)
    records.finish(decision("never"), "ended", 200, None, None)
    records.add(decision("d1"))
    records.add(decision("d2"))
    records.finish(decision("d1"), "ended", 200, None, None)
    assert records.explain("never") is records.explain("d1") is None
    assert len(records) == 1


def test_the_newest_records_come_first() -> None:
    records = DecisionLog(max_records=3)
    for i in range(5):
        records.add(decision(f"d{i}"))
    assert records.recent(10) == ["d4", "d3", "d2"]
    assert records.recent(1) == ["d4"]
    records.finish(decision("d2"), "ended", 200, None, None)
    assert records.recent(1) == ["d4"]


def test_many_candidates_leave_room_for_fewer_records() -> None:
    names = [f"w:{i}" for i in range(100)]
    records = DecisionLog(max_bytes=10 * (1200 + 100 * CANDIDATE_BYTES))
    for i in range(30):
        records.add(decision(f"d{i}", *names))
    assert len(records) == 10


@given(st.lists(st.integers(1, 20)), st.integers(1, 8), st.integers(1, 30_000))
def test_both_bounds_hold_and_the_newest_records_are_kept(
    sizes: list[int], max_records: int, max_bytes: int
) -> None:
    records = DecisionLog(max_records=max_records, max_bytes=max_bytes)
    for i, size in enumerate(sizes):
        records.add(decision(f"d{i}", *(f"w:{n}" for n in range(size))))
    kept = records.recent(len(sizes))
    assert kept == [f"d{i}" for i in reversed(range(len(sizes)))][: len(kept)]
    assert len(kept) <= max_records
    assert sum(1000 + CANDIDATE_BYTES * sizes[int(i[1:])] for i in kept) <= max_bytes


def test_ended_requests_are_listed_newest_first_and_found_by_either_id() -> None:
    records = DecisionLog(clock=lambda: 1000.5)
    for number in range(4):
        records.add(decision(f"d{number}"))
    for number in range(3):
        records.finish(decision(f"d{number}"), "ended", 200, 0.25, usage(), 2.5, f"client-{number}".encode())
    assert [each["id"] for each in records.ended(10)] == ["d2", "d1", "d0"]
    assert [each["id"] for each in records.ended(2)] == ["d2", "d1"]
    assert [each["id"] for each in records.ended(10, "client-1")] == ["d1"]
    assert [each["id"] for each in records.ended(10, "d0")] == ["d0"]
    assert records.ended(10, "other") == []


def test_a_listed_request_has_prediction_and_outcome() -> None:
    records = DecisionLog(clock=lambda: 1000.5)
    records.add(decision("d1"))
    records.finish(decision("d1"), "ended", 200, 0.25, usage(), 2.5, b"r" * 10_000)
    (listed,) = records.ended(1)
    assert listed["request_id"] == "r" * MAX_NAME_CHARS
    assert (listed["at"], listed["total_s"], listed["ttft_s"], listed["status"]) == (1000.5, 2.5, 0.25, 200)
    assert (
        listed["predicted_cached_tokens"] == 64 and listed["reported_cached_tokens"] == usage().cached_tokens
    )
    assert msgspec.convert(listed, RequestView)
    assert len(records._ring["d1"][3]) == MAX_NAME_CHARS  # no more is kept


def test_a_failed_attempt_is_listed_with_what_was_counted() -> None:
    records = DecisionLog()
    records.add(decision("d1"))
    records.finish(decision("d1"), "failed", 0, None, None)
    (listed,) = records.ended(1)
    assert (listed["result"], listed["prompt_tokens"], listed["total_s"]) == ("failed", 100, None)
