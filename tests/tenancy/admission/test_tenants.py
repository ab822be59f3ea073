"""Tenants' limits, and the headers that report them."""

from contextlib import nullcontext

import pytest

from gateway.bookings.tenant_usage import QuotaTable
from gateway.config.tenant_limits import TenantLimits
from gateway.core.errors import TooManyRequests
from gateway.tenancy.admission.tenants import MAX_LABELS, OTHERS, Tenant, Tenants


def tenant(**limits: float) -> Tenant:
    return Tenant("t", "t", TenantLimits(**limits), 0.0)  # type: ignore[arg-type]


def refused(acme: Tenant, now: float) -> TooManyRequests:
    with pytest.raises(TooManyRequests) as caught:
        acme.admit(now)
    return caught.value


def test_without_limits_all_requests_are_admitted() -> None:
    acme = tenant()
    for _ in range(1000):
        acme.admit(0.0)
    acme.take_tokens(10**9, 0.0)
    acme.correct_tokens(5, 0.0)
    assert acme.num_active == 1000 and acme.headers(0.0) == [] and not acme.has_limits


def test_requests_per_second() -> None:
    acme = tenant(requests_per_s=2)
    acme.admit(0.0)
    acme.admit(0.0)
    error = refused(acme, 0.1)
    assert (error.status, error.code, error.kind) == (429, "rate_limit_exceeded", "requests")
    assert (error.retry_after_s, error.retry_after_ms) == (1, 400)
    assert "tenant 't'" in error.message and "at most 2 per second; try again in 0.4 s" in error.message
    assert acme.num_active == 2
    acme.admit(0.5)


def test_a_burst_after_a_pause() -> None:
    acme = tenant(requests_per_s=0.5, requests_at_once=3)
    for _ in range(3):
        acme.admit(0.0)
    assert refused(acme, 0.0).retry_after_s == 2


def test_requests_at_once() -> None:
    acme = tenant(max_concurrent=2)
    acme.admit(0.0)
    acme.admit(0.0)
    assert "at most 2 at once, 2 are in flight" in refused(acme, 100.0).message
    acme.ended()
    acme.admit(100.0)
    assert acme.num_active == 2


def test_tokens_per_minute_count_prompts_and_answers() -> None:
    acme = tenant(tokens_per_min=600)
    acme.admit(0.0)
    acme.take_tokens(400, 0.0)
    with pytest.raises(TooManyRequests) as caught:
        acme.take_tokens(300, 0.0)
    assert (caught.value.kind, caught.value.retry_after_s) == ("tokens", 10)
    assert "at most 600 per minute, 200 are left and the request needs 300" in caught.value.message
    acme.correct_tokens(1200, 0.0)  # its answer
    error = refused(acme, 0.0)  # before any work is done for it
    # 100.1 s, of which no more than this is reported
    assert error.kind == "tokens" and error.retry_after_s == 60
    acme.admit(101.0)


def test_a_prompt_larger_than_the_bucket_is_admitted_when_it_is_full() -> None:
    acme = tenant(tokens_per_min=60)
    acme.take_tokens(1000, 0.0)
    assert refused(acme, 900.0).kind == "tokens"
    acme.admit(942.0)


def test_a_rejected_request_takes_no_quota() -> None:
    acme = tenant(requests_per_s=1, max_concurrent=1)
    acme.admit(0.0)
    for _ in range(100):
        refused(acme, 10.0)
    acme.ended()
    acme.admit(10.0)


def test_remaining_quota_headers_are_openais() -> None:
    acme = tenant(requests_per_s=2, tokens_per_min=6000)
    acme.admit(0.0)
    acme.take_tokens(1500, 0.0)
    assert acme.has_limits
    assert acme.headers(0.0) == [
        (b"x-ratelimit-limit-requests", b"2"),
        (b"x-ratelimit-remaining-requests", b"1"),
        (b"x-ratelimit-reset-requests", b"500ms"),
        (b"x-ratelimit-limit-tokens", b"6000"),
        (b"x-ratelimit-remaining-tokens", b"4500"),
        (b"x-ratelimit-reset-tokens", b"15s"),
    ]
    acme.correct_tokens(10_000, 0.0)
    assert acme.headers(0.0)[4] == (b"x-ratelimit-remaining-tokens", b"0")


# all of them -----------------------------------------------------------------------------------------


def test_unnamed_tenants_each_have_the_default_limits() -> None:
    tenants = Tenants({"*": TenantLimits(max_concurrent=1), "big": TenantLimits(max_concurrent=9)})
    a, b, big = (tenants.of(name, 0.0) for name in ("a", "b", "big"))
    assert (a.limits.max_concurrent, b.limits.max_concurrent, big.limits.max_concurrent) == (1, 1, 9)
    a.admit(0.0)
    b.admit(0.0)
    assert tenants.of("a", 5.0) is a


def test_a_bounded_number_is_kept_and_idle_tenants_are_forgotten_first() -> None:
    tenants = Tenants({"*": TenantLimits(requests_per_s=1), "known": TenantLimits()}, max_tenants=3)
    for name in ("a", "b", "c"):
        tenants.of(name, 0.0).admit(0.0)
    others = tenants.of("d", 0.0)
    assert others.name == OTHERS and tenants.of("e", 0.0) is others
    assert tenants.of("known", 0.0).name == "known"
    tenants.of("a", 0.0).ended()
    tenants.of("b", 0.0).ended()
    assert tenants.of("f", 0.5) is others  # the bucket of a is not full again
    assert tenants.of("g", 5.0).name == "g"
    assert {each.name for each in tenants.known()} >= {"c", "g"}


def test_labels_of_metrics_are_bounded() -> None:
    tenants = Tenants({"known": TenantLimits()})
    labels = {tenants.of(f"t{i}", 0.0).label for i in range(MAX_LABELS + 50)}
    assert len(labels) == MAX_LABELS + 1 and OTHERS in labels
    assert tenants.of("known", 0.0).label == "known"


# several processes --------------------------------------------------------------------------------------


def beside(**limits: float) -> tuple[Tenant, Tenant]:
    """The same tenant in two processes."""
    memory = memoryview(bytearray(QuotaTable.num_bytes(2)))
    table = QuotaTable(memory, 2, nullcontext)
    every = {"*": TenantLimits(**limits)}  # type: ignore[arg-type]
    first, second = (Tenants(every, used_of=lambda name, row=row: table.of(name, row)) for row in (0, 1))  # type: ignore[misc]
    return first.of("t", 0.0), second.of("t", 0.0)


def test_processes_admit_no_more_together_than_one_would() -> None:
    first, second = beside(requests_per_s=2)
    first.admit(0.0)
    second.admit(0.0)
    for each in (first, second):
        assert refused(each, 0.0).kind == "requests"
    second.admit(0.5)
    assert refused(first, 0.6).retry_after_ms == 400


def test_active_requests_are_counted_over_processes() -> None:
    first, second = beside(max_concurrent=2)
    first.admit(0.0)
    first.admit(0.0)
    assert "2 are in flight" in refused(second, 0.0).message
    first.ended()
    second.admit(0.0)
    assert "2 are in flight" in refused(first, 0.0).message


def test_tokens_are_counted_over_processes_and_given_back() -> None:
    first, second = beside(tokens_per_min=600)
    first.admit(0.0)
    first.take_tokens(500, 0.0)
    second.admit(0.0)
    with pytest.raises(TooManyRequests):
        second.take_tokens(200, 0.0)
    first.correct_tokens(-500, 0.0)
    second.admit(0.0)
    second.take_tokens(600, 0.0)
    assert refused(first, 0.0).kind == "tokens"


def test_a_process_that_meets_a_tenant_begins_with_the_remaining_quota() -> None:
    memory = memoryview(bytearray(QuotaTable.num_bytes(2)))
    table = QuotaTable(memory, 2, nullcontext)
    every = {"*": TenantLimits(requests_per_s=1, requests_at_once=4, tokens_per_min=60)}
    first = Tenants(every, used_of=lambda name: table.of(name, 0)).of("t", 100.0)
    for _ in range(4):
        first.admit(100.0)
    first.take_tokens(50, 100.0)
    late = Tenants(every, used_of=lambda name: table.of(name, 1)).of("t", 101.0)
    assert late.requests and late.requests.level(101.0) == pytest.approx(1.0)
    assert late.tokens and late.tokens.level(101.0) == pytest.approx(11.0)
    later = Tenants(every, used_of=lambda name: table.of(name, 1)).of("t", 500.0)
    assert later.requests and later.requests.level(500.0) == 4.0
