"""Limits of tenants, off by default."""

from gateway.config.tenant_limits import NO_LIMITS, TenantLimits, is_limited


def test_a_tenant_without_a_table_has_no_limits_and_an_equal_share() -> None:
    assert (
        TenantLimits(requests_per_s=0, tokens_per_min=0, max_concurrent=0, weight=1, priority=0) == NO_LIMITS
    )


def test_a_share_or_a_priority_is_no_limit() -> None:
    assert not is_limited(TenantLimits(weight=2, priority=-1, slo_ttft_s=5))
    assert is_limited(TenantLimits(max_concurrent=1)) and is_limited(TenantLimits(tokens_per_min=1))
    assert is_limited(TenantLimits(requests_per_s=0.1))
