"""Who asks, and how much of it is let in: requests per second, tokens per minute, requests at once.

    admit ─► a request more is under way ─► took tokens (its prompt, once it is counted) ─► ended (its answer)
      └─► TooManyRequests: nothing was taken

Tenants that are configured are known by name. Others have the limits of `"*"`, each for itself; so many of
them are kept, and the rest is one tenant together.
"""

import math
from collections.abc import Callable, Mapping

from mypy_extensions import mypyc_attr

from gateway.bookings.tenant_usage import GIVEN, NO_REQUESTS, NO_TOKENS, REQUESTS, TOKENS, Used
from gateway.config.tenant_limits import NO_LIMITS, Limits, is_limited
from gateway.core.errors import TooManyRequests
from gateway.http.messages import Header, HttpRequest
from gateway.tenancy.admission.fair_queue import Entry
from gateway.tenancy.admission.token_bucket import Bucket, duration

EVERYBODY = "*"
ANONYMOUS = "anonymous"
OTHERS = "(others)"

MAX_TENANTS = 10_000
MAX_LABELS = 100
"""Tenants that are not configured and have metrics of their own: a page of metrics must stay readable."""
BUSY_S = 1.0
"""To tell a client when one of its own requests will have ended is a guess."""


@mypyc_attr(acyclic=True)
class Tenant:
    """One tenant's limits and what is left of them. `label` is its name in metrics, `used` what other
    processes let it use."""

    __slots__ = ("name", "label", "limits", "requests", "tokens", "num_active", "_used")

    def __init__(self, name: str, label: str, limits: Limits, now: float, used: Used | None = None) -> None:
        self.name = name
        self.label = label
        self.limits = limits
        self.requests, self.tokens = _buckets(limits, now)
        self.num_active = 0
        self._used = used
        if used is not None:
            for cell, bucket in ((NO_REQUESTS, self.requests), (NO_TOKENS, self.tokens)):
                if bucket is not None:
                    bucket.take(used.missing_elsewhere(cell, bucket.rate, now), now)

    def __repr__(self) -> str:
        return f"Tenant({self.name!r}, active={self.num_active}, {self.requests}, {self.tokens})"

    def limit(self, limits: Limits, now: float, used: Used | None) -> None:
        """Other limits from now on. The share that was left of the old ones is left of these."""
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
        """One more of its requests is under way, until `ended`. Raises TooManyRequests."""
        num_active = self.num_active
        if self._used is not None:
            num_active += self._hear(self._used, now)
        most = self.limits.max_concurrent
        if most and num_active >= most:
            raise self._refused("requests", f"at most {most} at once, {num_active} are under way", BUSY_S)
        if self.tokens is not None and self.tokens.level(now) <= 0:
            self._check_tokens(1, now)
        if self.requests is not None:
            if wait_s := self.requests.wait_s(1, now):
                rate = self.limits.requests_per_s
                raise self._refused("requests", f"at most {rate:g} per second", wait_s)
            self.requests.take(1, now)
        self.num_active += 1
        if self._used is not None:
            self._used.took(REQUESTS, 1)
            self._used.set_active(self.num_active)
            self._tell(self._used, now)

    def ended(self) -> None:
        self.num_active -= 1
        if self._used is not None:
            self._used.set_active(self.num_active)

    def take_tokens(self, num_tokens: int, now: float) -> None:
        """Those of a prompt. Raises TooManyRequests."""
        if self.tokens is not None:
            self._check_tokens(num_tokens, now)
            self.correct_tokens(num_tokens, now)

    def correct_tokens(self, num_tokens: int, now: float) -> None:
        """More than was taken before, as is known now; less than 0: less."""
        if self.tokens is not None:
            self.tokens.take(num_tokens, now)
            if self._used is not None:
                self._used.took(TOKENS if num_tokens > 0 else GIVEN, abs(num_tokens))
                self._tell(self._used, now)

    @property
    def has_limits(self) -> bool:
        """That are told with each answer."""
        return self.requests is not None or self.tokens is not None

    def is_idle(self, now: float) -> bool:
        """Another one made in its place would be the same."""
        if self.num_active:
            return False
        return all([not each or each.level(now) >= each.capacity for each in (self.requests, self.tokens)])

    def headers(self, now: float) -> list[Header]:
        """What is left, as OpenAI tells it."""
        told: list[Header] = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket is not None:
                left = max(math.floor(bucket.level(now) + 1e-6), 0)
                told.append((b"x-ratelimit-limit-" + name, b"%d" % bucket.capacity))
                told.append((b"x-ratelimit-remaining-" + name, b"%d" % left))
                told.append((b"x-ratelimit-reset-" + name, duration(bucket.full_in_s(now)).encode()))
        return told

    def _hear(self, used: Used, now: float) -> int:
        """What the others have taken, and how many of its requests they have under way."""
        if self.requests is not None:
            self.requests.take(used.grown_elsewhere(REQUESTS), now)
        if self.tokens is not None:
            self.tokens.take(used.grown_elsewhere(TOKENS) - used.grown_elsewhere(GIVEN), now)
        return used.num_active_elsewhere()

    def _tell(self, used: Used, now: float) -> None:
        """To a process that has not met it."""
        num_requests = self.requests.capacity - self.requests.level(now) if self.requests else 0.0
        num_tokens = self.tokens.capacity - self.tokens.level(now) if self.tokens else 0.0
        used.tell_missing(num_requests, num_tokens, now)

    def _check_tokens(self, num_tokens: int, now: float) -> None:
        assert self.tokens is not None
        if wait_s := self.tokens.wait_s(num_tokens, now):
            left = max(math.floor(self.tokens.level(now)), 0)
            what = f"at most {self.limits.tokens_per_min} per minute, {left} are left and it has {num_tokens}"
            raise self._refused("tokens", what, wait_s)

    def _refused(self, kind: str, what: str, wait_s: float) -> TooManyRequests:
        message = f"rate limit of tenant '{self.name}' reached on {kind}: {what}; try again in {wait_s:.3g} s"
        return TooManyRequests(message, code="rate_limit_exceeded", kind=kind, wait_s=wait_s)


def _buckets(limits: Limits, now: float) -> tuple[Bucket | None, Bucket | None]:
    """Of requests and of tokens."""
    rate, at_once, per_min = limits.requests_per_s, limits.requests_at_once, limits.tokens_per_min
    requests = Bucket(rate, at_once or max(1, math.ceil(rate)), now) if rate else None
    return requests, Bucket(per_min / 60, per_min, now) if per_min else None


class Ticket:
    """A request that was let in. `headers` go with its answer; `num_tokens` are those that its tenant has
    paid for; `entry` is there while it waits."""

    __slots__ = ("tenant", "http", "arrived_s", "headers", "num_tokens", "entry")

    def __init__(self, tenant: Tenant, http: HttpRequest, arrived_s: float, headers: list[Header]) -> None:
        self.tenant = tenant
        self.http = http
        self.arrived_s = arrived_s
        self.headers = headers
        self.num_tokens = 0
        self.entry: Entry | None = None


class Tenants:
    """All that were heard of. `limits` by name, with those of everybody else under "*"; `used_of` is what
    other processes of this host let a tenant use."""

    def __init__(
        self,
        limits: Mapping[str, Limits],
        *,
        max_tenants: int = MAX_TENANTS,
        used_of: Callable[[str], Used | None] | None = None,
    ) -> None:
        self._limits = limits
        self._others = limits.get(EVERYBODY, NO_LIMITS)
        self._max_tenants = max_tenants
        self._used_of = used_of
        self._tenants: dict[str, Tenant] = {}
        self._labels = {name for name in limits if name != EVERYBODY}
        self._num_labels = 0
        self._swept_s = -math.inf

    def __repr__(self) -> str:
        return f"Tenants({len(self._tenants)}, configured={sorted(self._limits)})"

    def limit(self, limits: Mapping[str, Limits], now: float) -> None:
        """Other limits, for those that are known already too."""
        self._limits, self._others = limits, limits.get(EVERYBODY, NO_LIMITS)
        self._labels |= {name for name in limits if name != EVERYBODY}
        for name, tenant in self._tenants.items():
            if (new := limits.get(name, self._others)) != tenant.limits:
                tenant.limit(new, now, self._used(name, new))

    def of(self, name: str, now: float) -> Tenant:
        return self._tenants.get(name) or self._meet(name, now)

    def known(self) -> list[Tenant]:
        return list(self._tenants.values())

    def _meet(self, name: str, now: float) -> Tenant:
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

    def _used(self, name: str, limits: Limits) -> Used | None:
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
        """It costs milliseconds, so not for each that comes."""
        if now - self._swept_s >= 1.0:
            self._swept_s = now
            self._tenants = {name: t for name, t in self._tenants.items() if not t.is_idle(now)}
