"""Who chooses, as configured, and again when the policy file has changed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.config import Config
from gateway.core.decision import Decision
from gateway.core.errors import ConfigError
from gateway.policies.base import Policy
from gateway.policies.composed import explained
from gateway.policies.contract import Broken, many_candidates, one_candidate
from gateway.policies.guard import Faults, Guard, where
from gateway.policies.library import Library, worth_of
from gateway.policies.plugins import PolicyFile, read_file

log = logging.getLogger("kvgate.policies")


class Choosing:
    """`policy` is the one in use; `changed` is told of another one when the file was read anew."""

    def __init__(self, config: Config, source: str | None = None) -> None:
        """`source` is the policy file's text where it was read before. Raises ConfigError."""
        self._config = config
        self.faults = Faults()
        self.num_loaded = self.num_refused = 0
        self.refusal: str | None = None
        self.changed: Callable[[Policy], None] = lambda policy: None
        self._file = self._read(source)
        self.policy = self._make(self._file)

    def __repr__(self) -> str:
        return f"Choosing({self.policy!r}, file={self._config.policy_file!r})"

    async def reload(self, source: str | None = None) -> None:
        """Take the policy file as it is now. Where it is broken, what is in use stays; raises ConfigError."""
        try:
            file, policy = await asyncio.to_thread(self._load, source)
        except ConfigError as exc:
            self.num_refused += 1
            self.refusal = str(exc)
            log.error("the policies in use stay: %s", exc)
            raise
        self._file, self.policy, self.refusal = file, policy, None
        self.num_loaded += 1
        self.changed(policy)
        log.info("policies are read anew, %s chooses", policy.name)

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        guard = self.policy if isinstance(self.policy, Guard) else None
        return {
            "policy": self.policy.name,
            "fault": guard.fault if guard else None,
            "fallbacks": self._fallbacks(),
            "file": {"path": self._config.policy_file, "refused": self.refusal} if self._file else None,
            "known": self.library.names("policy"),
        }

    def parts_of(self, decision: Decision) -> Sequence[Mapping[str, float]]:
        """What its policy says that each candidate's cost is made of, in seconds; nothing for one that says
        nothing, or is not in use any more."""
        if decision.query is None or decision.policy != self.policy.name:
            return ()
        try:
            parts = explained(self.policy, decision.query, decision.candidates)
        except Exception as exc:  # noqa: BLE001  others' code, and only asked by people
            log.warning("policy %s does not explain itself: %s", decision.policy, where(exc))
            return ()
        return parts if len(parts) == len(decision.candidates) and any(parts) else ()

    def _fallbacks(self) -> list[dict[str, Any]]:
        by_name: dict[str, dict[str, Any]] = {}
        for (name, cause), num in self.faults.items():
            by_name.setdefault(name, {"name": name})[cause] = num
        return list(by_name.values())

    def _load(self, source: str | None) -> tuple[PolicyFile | None, Policy]:
        file = self._read(source)
        return file, self._make(file)

    def _read(self, source: str | None) -> PolicyFile | None:
        path = self._config.policy_file
        return read_file(Path(path), source) if path else None

    def _make(self, file: PolicyFile | None) -> Policy:
        """Raises ConfigError for one that does not do among made-up candidates either."""
        library = library_of(self._config, file, self.faults)
        policy = library.policy(self._config.policy)
        for check in (one_candidate, many_candidates):
            try:
                check(lambda: library.bare(self._config.policy), inf)
            except Broken as exc:
                raise ConfigError(f"policy {policy.name}: {exc}") from exc
            except Exception as exc:  # noqa: BLE001  others' code: whatever it raises, it is no policy
                raise ConfigError(f"policy {policy.name}: {where(exc)}") from exc
        self.library = library
        return policy


def library_of(config: Config, file: PolicyFile | None = None, faults: Faults | None = None) -> Library:
    """Raises ConfigError."""
    return Library(
        worth=worth_of(config.medium_worth),
        place=config.place,
        compositions=config.policies,
        file=file,
        budget_s=config.policy_budget_ms / 1000,
        faults=faults,
    )


class PolicyCollector(Collector):
    def __init__(self, choosing: Choosing) -> None:
        self._choosing = choosing

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        choosing = self._choosing
        fallbacks = CounterMetricFamily(
            "kvgate_policy_fallbacks",
            "Decisions that went by least load, since the policy failed",
            labels=["policy", "cause"],
        )
        for key, num in choosing.faults.items():
            fallbacks.add_metric(list(key), num)
        yield fallbacks
        loads = CounterMetricFamily(
            "kvgate_policy_file_loads", "Times that the policy file was read anew", labels=["result"]
        )
        loads.add_metric(["loaded"], choosing.num_loaded)
        loads.add_metric(["refused"], choosing.num_refused)
        yield loads
