"""Limits of a tenant, as `[tenants.NAME]` configures them; 0 means no limit."""

from typing import Annotated

import msgspec
from msgspec import Meta


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """requests_per_s   let in per second, on average
    requests_at_once    and as many at once after a pause; without it, those of a second
    tokens_per_min      prompt tokens as counted here, and generated ones as the engine reports
    max_concurrent      requests in flight, queued ones included
    weight              share of the fleet while others wait too
    priority            of its requests, where they say none; lower goes first, as in vLLM
    slo_ttft_s          within what they want their first token, where they do not say
    """

    requests_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    requests_at_once: Annotated[int, Meta(ge=0, le=10**9)] = 0
    tokens_per_min: Annotated[int, Meta(ge=0, le=10**15)] = 0
    max_concurrent: Annotated[int, Meta(ge=0)] = 0
    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0
    slo_ttft_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0


NO_LIMITS = TenantLimits()


def is_limited(limits: TenantLimits) -> bool:
    return bool(limits.requests_per_s or limits.tokens_per_min or limits.max_concurrent)
