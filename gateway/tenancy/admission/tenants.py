"""Rate limits by tenant: requests per second, tokens per minute, concurrent requests.

    admit ─► one more request in flight ─► take tokens (its prompt, once counted) ─► ended (its answer)
      └─► TooManyRequests: nothing was counted

Configured tenants are known by name. Others each have the limits of `"*"`; a bounded number of them is kept,
and the rest count as one tenant together.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.bookings.tenant_usage import GIVEN, NO_REQUESTS, NO_TOKENS, REQUESTS, TOKENS, QuotaUsage
from gateway.config.tenant_limits import NO_LIMITS, TenantLimits, is_limited
from gateway.core.errors import TooManyRequests
from gateway.http.messages import Header, HttpRequest
from gateway.tenancy.admission.fair_queue import QueueEntry
from gateway.tenancy.admission.token_bucket import TokenBucket, duration

DEFAULT: Final = "*"
ANONYMOUS: Final = "anonymous"
OTHERS: Final = "(others)"

MAX_TENANTS: Final = 10_000
MAX_LABELS: Final = 100
"""Unconfigured tenants with metrics of their own: a page of metrics must stay readable."""
BUSY_S: Final = 1.0
"""Seconds to suggest in Retry-After at the concurrency limit: a guess of when a request will have ended."""


@mypyc_attr(acyclic=True)
class Tenant:
    """Limits of one tenant and its remaining quota. `label` is its name in metrics, `used` its usage in the
    other processes of this host."""

    __slots__ = ("name", "label", "limits", "requests", "tokens", "num_active", "_used")

    def __init__(
        self, name: str, label: str, limits: TenantLimits, now: float, used: QuotaUsage | None = None
    ) -> None:
        self.name = name
        self.label = label
        self.limits = limits
        self.requests, self.tokens = _buckets(limits, now)
        self.num_active = 0
        self._used = used
        if used is not None:
            for cell, bucket in ((NO_REQUESTS, self.requests), (NO_TOKENS, self.tokens)):
                if bucket is not None:
                    bucket.take(used.deficit_elsewhere(cell, bucket.rate, now), now)

    def __repr__(self) -> str:
        return f"Tenant({self.name!r}, active={self.num_active}, {self.requests}, {self.tokens})"

    def limit(self, limits: TenantLimits, now: float, used: QuotaUsage | None) -> None:
        """Change the limits. The share of quota that was left of the old limits is left of the new ones."""
        shares = [
            1.0 if each is None else each.level(now) / each.capacity for each in (self.requests, self.tokens)
        ]
        self.limits = limits
        self.requests, self.tokens = _buckets(limits, now)
        for bucket, share in zip((self.requests, self.tokens), shares, strict=True):
            if bucket is not None:
                bucket.take((1 - share) * bucket.capacity, now)
        self._used = used
        if used is not None:
            used.set_active(self.num_active)

    def admit(self, now: float) -> None:
        """Count one more request in flight, until `ended`. Raises TooManyRequests."""
        num_active = self.num_active
        if self._used is not None:
            num_active += self._take_remote_usage(self._used, now)
        most = self.limits.max_concurrent
        if most and num_active >= most:
            raise self._refused("requests", f"at most {most} at once, {num_active} are in flight", BUSY_S)
        if self.tokens is not None and self.tokens.level(now) <= 0:
            self._check_tokens(1, now)
        if self.requests is not None:
            if wait_s := self.requests.wait_s(1, now):
                rate = self.limits.requests_per_s
                raise self._refused("requests", f"at most {rate:g} per second", wait_s)
            self.requests.take(1, now)
        self.num_active += 1
        if self._used is not None:
            self._used.add(REQUESTS, 1)
            self._used.set_active(self.num_active)
            self._publish_missing(self._used, now)

    def ended(self) -> None:
        self.num_active -= 1
        if self._used is not None:
            self._used.set_active(self.num_active)

    def take_tokens(self, num_tokens: int, now: float) -> None:
        """Take the tokens of a prompt from the quota. Raises TooManyRequests."""
        if self.tokens is not None:
            self._check_tokens(num_tokens, now)
            self.correct_tokens(num_tokens, now)

    def correct_tokens(self, num_tokens: int, now: float) -> None:
        """Correct the tokens taken by a difference that is known now; a negative number refunds."""
        if self.tokens is not None:
            self.tokens.take(num_tokens, now)
            if self._used is not None:
                self._used.add(TOKENS if num_tokens > 0 else GIVEN, abs(num_tokens))
                self._publish_missing(self._used, now)

    @property
    def has_limits(self) -> bool:
        """True if the tenant has rate limits, which are reported with each answer."""
        return self.requests is not None or self.tokens is not None

    def is_idle(self, now: float) -> bool:
        """True if the tenant has nothing in flight and its full quota, so that it need not be remembered."""
        if self.num_active:
            return False
        return all([not each or each.level(now) >= each.capacity for each in (self.requests, self.tokens)])

    def headers(self, now: float) -> list[Header]:
        """Rate-limit headers with the remaining quota, in OpenAI's format."""
        result: list[Header] = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket is not None:
                left = max(math.floor(bucket.level(now) + 1e-6), 0)
                result.append((b"x-ratelimit-limit-" + name, b"%d" % bucket.capacity))
                result.append((b"x-ratelimit-remaining-" + name, b"%d" % left))
                result.append((b"x-ratelimit-reset-" + name, duration(bucket.full_in_s(now)).encode()))
        return result

    def _take_remote_usage(self, used: QuotaUsage, now: float) -> int:
        """Take the usage in other processes from the quota. Returns their requests in flight."""
        if self.requests is not None:
            self.requests.take(used.grown_elsewhere(REQUESTS), now)
        if self.tokens is not None:
            self.tokens.take(used.grown_elsewhere(TOKENS) - used.grown_elsewhere(GIVEN), now)
        return used.num_active_elsewhere()

    def _publish_missing(self, used: QuotaUsage, now: float) -> None:
        """Publish the quota used so far, for a process that meets the tenant later."""
        num_requests = self.requests.capacity - self.requests.level(now) if self.requests else 0.0
        num_tokens = self.tokens.capacity - self.tokens.level(now) if self.tokens else 0.0
        used.publish_deficit(num_requests, num_tokens, now)

    def _check_tokens(self, num_tokens: int, now: float) -> None:
        assert self.tokens is not None
        if wait_s := self.tokens.wait_s(num_tokens, now):
            left = max(math.floor(self.tokens.level(now)), 0)
            most = f"at most {self.limits.tokens_per_min} per minute"
            what = f"{most}, {left} are left and the request needs {num_tokens}"
            raise self._refused("tokens", what, wait_s)

    def _refused(self, kind: str, what: str, wait_s: float) -> TooManyRequests:
        message = f"rate limit of tenant '{self.name}' reached on {kind}: {what}; try again in {wait_s:.3g} s"
        return TooManyRequests(message, code="rate_limit_exceeded", kind=kind, wait_s=wait_s)


def _buckets(limits: TenantLimits, now: float) -> tuple[TokenBucket | None, TokenBucket | None]:
    """Token buckets for requests and for tokens; None where unlimited."""
    rate, at_once, per_min = limits.requests_per_s, limits.requests_at_once, limits.tokens_per_min
    requests = TokenBucket(rate, at_once or max(1, math.ceil(rate)), now) if rate else None
    return requests, TokenBucket(per_min / 60, per_min, now) if per_min else None


class Ticket:
    """Admission of one request. `headers` go with its answer; `num_tokens` are the prompt tokens charged to
    its tenant; `entry` is set while it is queued."""

    __slots__ = ("tenant", "http", "arrived_s", "headers", "num_tokens", "entry")

    def __init__(self, tenant: Tenant, http: HttpRequest, arrived_s: float, headers: list[Header]) -> None:
        self.tenant = tenant
        self.http = http
        self.arrived_s = arrived_s
        self.headers = headers
        self.num_tokens = 0
        self.entry: QueueEntry | None = None


class Tenants:
    """Tenants seen so far. `limits` by name, with the default under "*"; `used_of` returns a tenant's usage
    in the other processes of this host."""

    def __init__(
        self,
        limits: Mapping[str, TenantLimits],
        *,
        max_tenants: int = MAX_TENANTS,
        used_of: Callable[[str], QuotaUsage | None] | None = None,
    ) -> None:
        self._limits = limits
        self._others = limits.get(DEFAULT, NO_LIMITS)
        self._max_tenants = max_tenants
        self._used_of = used_of
        self._tenants: dict[str, Tenant] = {}
        self._labels = {name for name in limits if name != DEFAULT}
        self._num_labels = 0
        self._swept_s = -math.inf

    def __repr__(self) -> str:
        return f"Tenants({len(self._tenants)}, configured={sorted(self._limits)})"

    def limit(self, limits: Mapping[str, TenantLimits], now: float) -> None:
        """Change the limits, also of tenants already known."""
        self._limits, self._others = limits, limits.get(DEFAULT, NO_LIMITS)
        self._labels |= {name for name in limits if name != DEFAULT}
        for name, tenant in self._tenants.items():
            if (new := limits.get(name, self._others)) != tenant.limits:
                tenant.limit(new, now, self._used(name, new))

    def of(self, name: str, now: float) -> Tenant:
        return self._tenants.get(name) or self._add(name, now)

    def known(self) -> list[Tenant]:
        return list(self._tenants.values())

    def _add(self, name: str, now: float) -> Tenant:
        if len(self._tenants) >= self._max_tenants and name not in self._limits:
            self._sweep(now)
            if len(self._tenants) >= self._max_tenants:
                name = OTHERS
                if known := self._tenants.get(name):
                    return known
        limits = self._limits.get(name, self._others)
        tenant = Tenant(name, self._label(name), limits, now, self._used(name, limits))
        self._tenants[name] = tenant
        return tenant

    def _used(self, name: str, limits: TenantLimits) -> QuotaUsage | None:
        return self._used_of(name) if self._used_of and is_limited(limits) else None

    def _label(self, name: str) -> str:
        if name in self._labels:
            return name
        if self._num_labels >= MAX_LABELS:
            return OTHERS
        self._num_labels += 1
        self._labels.add(name)
        return name

    def _sweep(self, now: float) -> None:
        """Forget idle tenants, at most once a second: a sweep costs milliseconds."""
        if now - self._swept_s >= 1.0:
            self._swept_s = now
            self._tenants = {name: t for name, t in self._tenants.items() if not t.is_idle(now)}
