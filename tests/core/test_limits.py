"""Limits by default: none."""

from gateway.core.limits import NO_LIMITS, Limits


def test_who_is_not_configured_has_no_limits_and_an_equal_share() -> None:
    assert Limits(requests_per_s=0, tokens_per_min=0, max_concurrent=0, weight=1, priority=0) == NO_LIMITS
