"""The active policy, as configured, and its reload when the policy file has changed."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.errors import ConfigError
from gateway.observability.metric_spec import counter
from gateway.policies.base import Policy, reads_prefix
from gateway.policies.framework.ab_test import ABTest
from gateway.policies.framework.composed_policy import explained
from gateway.policies.framework.contract import (
    ContractViolation,
    declares_what_it_reads,
    many_candidates,
    one_candidate,
)
from gateway.policies.framework.guard import PolicyFaults, PolicyGuard, where
from gateway.policies.framework.plugins import PolicyFile, read_file
from gateway.policies.framework.registry import AUTO, PolicyRegistry, is_shipped, worth_of
from gateway.routing.experiments import PolicyExperiments, Shadow

log = logging.getLogger("kvgate.policies")


class LoadedPolicies(NamedTuple):
    """The policies of one reading of the file."""

    file: PolicyFile | None
    library: PolicyRegistry
    policy: Policy
    shadows: Mapping[str, Shadow]


class PolicyHost(Protocol):
    """A router: decides by `policy`, and sets `Query.prefix` where `reads_prefix` is True."""

    policy: Policy
    reads_prefix: bool


class ActivePolicy:
    """The policies in use; `changed` is called with the active one after each reload."""

    def __init__(self, config: Config, source: str | None = None) -> None:
        """Load the policies; `source` is the policy file's text where it was read before. Raises
        ConfigError."""
        self._config = config
        self.faults = PolicyFaults()
        self.num_loaded = self.num_refused = 0
        self.refusal: str | None = None
        self.changed: Callable[[Policy], None] = lambda policy: None
        self._reading = asyncio.Lock()
        self._made = self._make(config, source)
        self.experiments = PolicyExperiments(self._shares(), self._made.shadows)

    def __repr__(self) -> str:
        return f"ActivePolicy({self.policy!r}, file={self._config.policy.file!r})"

    @property
    def policy(self) -> Policy:
        return self._made.policy

    def drive(self, router: PolicyHost) -> None:
        """Give a router the active policy, and each later one."""

        def use(policy: Policy) -> None:
            router.policy, router.reads_prefix = policy, self.reads_prefix

        self.changed = use
        use(self.policy)

    @property
    def reads_prefix(self) -> bool:
        """True where a policy in use, or a shadow, reads `Query.prefix`."""
        shadows = [shadow.policy for shadow in self._made.shadows.values()]
        return any(map(reads_prefix, [self.policy, *shadows]))

    async def reload(self) -> None:
        """Reload the policy file. Where it is broken, the current policies stay; raises ConfigError."""
        async with self._reading:
            await self._reload()

    async def _reload(self) -> None:
        try:
            self.use(*await self.prepare(self._config))
        except ConfigError as exc:
            log.error("policies not reloaded, keeping the current ones: %s", exc)
            raise

    async def prepare(self, config: Config, source: str | None = None) -> tuple[Config, LoadedPolicies]:
        """Load the policies of another configuration, from the file or from `source`, for `use`. Raises
        ConfigError; the current policies stay."""
        try:
            return config, await asyncio.to_thread(self._make, config, source)
        except ConfigError as exc:
            self.num_refused += 1
            self.refusal = str(exc)
            raise

    def use(self, config: Config, made: LoadedPolicies) -> None:
        self._config, self._made, self.refusal = config, made, None
        self.num_loaded += 1
        self.experiments.replace(self._shares(), made.shadows)
        self.changed(made.policy)
        log.info("policies reloaded; active policy: %s", made.policy.name)

    def describe(self) -> dict[str, Any]:
        """Return the policies, their faults and the file's state as plain JSON values."""
        used = [self._used(name) for name in self._shares()]
        faults = [
            f"{each.name}: {each.fault}" for each in used if isinstance(each, PolicyGuard) and each.fault
        ]
        file = {"path": self._config.policy.file, "error": self.refusal}
        return {
            "policy": self.policy.name,
            "error": "; ".join(faults) or None,
            "fallbacks": self._fallbacks(),
            "file": file if self._made.file else None,
            "available": self._made.library.names("policy"),
            **self.experiments.describe(),
        }

    def parts_of(self, decision: Decision) -> Sequence[Mapping[str, float]]:
        """Return the parts of each candidate's cost in seconds, explained by the decision's policy; empty
        where that policy explains nothing or is no longer in use."""
        policy = self._used(decision.policy)
        if decision.query is None or policy is None:
            return ()
        try:
            parts = explained(policy, decision.query, decision.candidates)
        except Exception as exc:  # noqa: BLE001  third-party code, called only on an operator's request
            log.warning("policy %s failed to explain its costs: %s", decision.policy, where(exc))
            return ()
        return parts if len(parts) == len(decision.candidates) and any(parts) else ()

    def _shares(self) -> Mapping[str, float]:
        """Return the traffic shares of the policies in use."""
        return self.policy.shares if isinstance(self.policy, ABTest) else {self.policy.name: 1.0}

    def _used(self, name: str) -> Policy | None:
        if isinstance(self.policy, ABTest):
            return self.policy.policy_of(name)
        return self.policy if name == self.policy.name else None

    def _fallbacks(self) -> list[dict[str, Any]]:
        by_name: dict[str, dict[str, Any]] = {}
        for (name, cause), num in self.faults.items():
            by_name.setdefault(name, {"name": name})[cause] = num
        return list(by_name.values())

    def _make(self, config: Config, source: str | None) -> LoadedPolicies:
        """Load and try out the policies of a configuration. Raises ConfigError."""
        file = read_file(Path(config.policy.file), source) if config.policy.file else None
        library = library_of(config, file, self.faults)
        policy, shadows = policy_of(config, library), dict(shadows_of(config, library))
        for name in map(library.resolved, [*(config.policy.ab or [config.policy.name]), *shadows]):
            if not is_shipped(name):
                try_out(library, name)
        return LoadedPolicies(file, library, policy, shadows)


def library_of(
    config: Config, file: PolicyFile | None = None, faults: PolicyFaults | None = None
) -> PolicyRegistry:
    """Return the library of policies of a configuration. Raises ConfigError."""
    return PolicyRegistry(
        worth=worth_of(config.policy.medium_worth),
        place=config.fleet.location,
        compositions=config.policies,
        file=file,
        budget_s=config.policy.budget_ms / 1000,
        faults=faults,
    )


def policy_of(config: Config, library: PolicyRegistry) -> Policy:
    """Return the active policy, or the A/B test of several. Raises ConfigError."""
    if not config.policy.ab:
        return library.policy(config.policy.name)
    if config.policy.name != AUTO:
        raise ConfigError(f"ab: names the policies in use; leave policy = {config.policy.name} out")
    for name, share in config.policy.ab.items():
        if not 0 < share < inf:
            raise ConfigError(f"ab: the share of {name} is {share:g}; give one above 0")
    shares = {library.resolved(name): share for name, share in config.policy.ab.items()}
    if len(shares) < 2:
        raise ConfigError("ab: give two policies or more")
    return ABTest({name: library.policy(name) for name in shares}, shares)


def shadows_of(config: Config, library: PolicyRegistry) -> Iterator[tuple[str, Shadow]]:
    """Yield the shadow policies by name. Raises ConfigError."""
    for name in map(library.resolved, config.policy.shadow):
        faults = PolicyFaults()
        yield name, Shadow(library.policy(name, faults, is_shadow=True), faults)


def try_out(library: PolicyRegistry, name: str) -> None:
    """Try a policy on made-up candidates. Raises ConfigError if it fails."""
    policy = library.bare(name)
    for check in (one_candidate, many_candidates, declares_what_it_reads):
        try:
            check(lambda: policy, inf)
        except ContractViolation as exc:
            raise ConfigError(f"policy {name}: {exc}") from exc
        except Exception as exc:  # noqa: BLE001  third-party code: whatever it raises, it is no policy
            raise ConfigError(f"policy {name}: {where(exc)}") from exc


FALLBACKS = counter(
    "kvgate_policy_fallbacks_total",
    "Decisions made by least load because the policy failed, by policy and reason.",
    *("policy", "reason"),
)
FILE_RELOADS = counter("kvgate_policy_file_reloads_total", "Reloads of the policy file, by result.", "result")
METRICS = (FALLBACKS, FILE_RELOADS)


class PolicyCollector(Collector):
    def __init__(self, active_policy: ActivePolicy) -> None:
        self._active_policy = active_policy

    def collect(self) -> Iterator[Metric]:
        active_policy = self._active_policy
        yield FALLBACKS.family(active_policy.faults.items())
        yield FILE_RELOADS.family(
            [("loaded", active_policy.num_loaded), ("rejected", active_policy.num_refused)]
        )
