"""Every policy by its name: shipped, composed in the configuration, in a file, or in an installed package.

A composition or file that takes the name of something shipped is refused, so that a name in a log means one
thing; an installed package's is not found behind it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from gateway.core.errors import ConfigError
from gateway.core.spelling import meant
from gateway.costs.token_work import WORTH
from gateway.policies import COMPOSITIONS, DEFAULT, FILTERS, PICKERS, POLICIES, SCORERS
from gateway.policies.base import Policy
from gateway.policies.composition import Composition
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.policies.framework.composed_policy import CheckedPolicy, FilteredPolicy, ScoringPolicy
from gateway.policies.framework.guard import PolicyFaults, PolicyGuard
from gateway.policies.framework.plugins import Kind, Plugin, PolicyFile, installed
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.policies.topology import TopologyFilter

log = logging.getLogger("kvgate.policies")

AUTO = "auto"
BUDGET_S = 0.005

SHIPPED: Mapping[Kind, Mapping[str, Callable[[], Any]]] = {
    "policy": POLICIES,
    "filter": FILTERS,
    "scorer": SCORERS,
    "picker": PICKERS,
}


_WEIGHS_MEDIA: Mapping[str, Callable[[Mapping[str, float]], Policy]] = {
    "expected_ttft": ExpectedTtft,
    "prefix_overlap": PrefixOverlap,
}


class PolicyRegistry:
    """All policies and parts by name. `worth` is that of media (`prefix_overlap.py`), `place` the gateway's
    location (`topology.py`)."""

    def __init__(
        self,
        *,
        worth: Mapping[str, float] = WORTH,
        place: str = "",
        compositions: Mapping[str, Composition] | None = None,
        file: PolicyFile | None = None,
        budget_s: float = BUDGET_S,
        faults: PolicyFaults | None = None,
    ) -> None:
        """Collect the shipped, composed and plugged-in policies. Raises ConfigError for names that are
        taken."""
        self._worth = worth
        self._place = place
        self._compositions = {**COMPOSITIONS, **(compositions or {})}
        self._file = file
        self._budget_s = budget_s
        self._faults = PolicyFaults() if faults is None else faults
        self._installed = installed()
        self._warned: set[str] = set()
        for name in compositions or {}:
            if name in POLICIES or name in COMPOSITIONS or name == AUTO:
                raise ConfigError(f"policies.{name}: is the name of a built-in policy; choose another name")
        for plugin in file.plugins.values() if file else ():
            if plugin.name in self.names(plugin.kind, without_file=True) or plugin.name == AUTO:
                raise ConfigError(
                    f"{plugin.origin}: there is a {plugin.kind} '{plugin.name}' already; choose another name"
                )

    def __repr__(self) -> str:
        return f"PolicyRegistry({', '.join(self.names('policy'))})"

    def names(self, kind: Kind, *, without_file: bool = False) -> list[str]:
        """All of a kind; packages that cannot be loaded have none."""
        composed = self._compositions if kind == "policy" else ()
        plugins = self._file.plugins.values() if self._file and not without_file else ()
        own = [plugin.name for plugin in plugins if plugin.kind == kind]
        theirs = [plugin.name for plugin in self._installed.plugins.values() if plugin.kind == kind]
        return list(dict.fromkeys([*SHIPPED[kind], *composed, *own, *theirs]))

    def making(self, name: str) -> dict[Kind, Callable[[], Any]]:
        """Makers of everything with a name, by kind. Raises ConfigError if there is nothing."""
        found: dict[Kind, Callable[[], Any]] = {}
        for kind in SHIPPED:
            if name in self.names(kind):
                make = self.bare if kind == "policy" else partial(self._part, kind, where="policy test")
                found[kind] = partial(make, name)
        if not found and name in self._installed.faults:
            raise ConfigError(self._installed.faults[name])
        if not found:
            known = [each for kind in SHIPPED for each in self.names(kind)]
            words = meant(name, known) or "; see `kvgate policy list`"
            raise ConfigError(f"there is no policy, filter, scorer or picker '{name}'{words}")
        return found

    @property
    def faults_of_packages(self) -> Iterable[str]:
        """The plugins of packages that cannot be loaded, each with the reason."""
        return self._installed.faults.values()

    @property
    def own_policies(self) -> list[str]:
        """The policies of the file, in its order."""
        plugins = self._file.plugins.values() if self._file else ()
        return [plugin.name for plugin in plugins if plugin.kind == "policy"]

    def resolved(self, name: str) -> str:
        """Resolve "auto" to the file's policy, or the default. Raises ConfigError for a file with several."""
        if name != AUTO:
            return name
        if self._file is None or not any(p.kind == "policy" for p in self._file.plugins.values()):
            return DEFAULT
        if self._file.policy is None:
            raise ConfigError(f"{self._file.path}: has several policies; choose one with --policy")
        return self._file.policy

    def bare(self, name: str) -> Policy:
        """A new one, without a guard. Raises ConfigError."""
        return self._policy(self.resolved(name), ())

    def policy(self, name: str, faults: PolicyFaults | None = None, *, is_shadow: bool = False) -> Policy:
        """A new one; under guard if any of it is not shipped, its faults counted where all are, or there.
        Raises ConfigError."""
        name = self.resolved(name)
        policy = self._policy(name, ())
        if is_shipped(name):
            return policy
        faults = self._faults if faults is None else faults
        return PolicyGuard(name, policy, self._budget_s, faults, is_shadow=is_shadow)

    def _policy(self, name: str, within: Sequence[str]) -> Policy:
        if name in _WEIGHS_MEDIA:
            return _WEIGHS_MEDIA[name](self._worth)
        composition = self._compositions.get(name)
        if composition is not None and name not in within:
            return self._compose(name, composition, [*within, name])
        if composition is not None:
            raise ConfigError(f"policies.{name}: refers to itself through {' and '.join(within)}")
        where = f"policies.{within[-1]}.policy" if within else "policy"
        policy: Policy = self._part("policy", name, where)
        return policy if name in POLICIES else CheckedPolicy(name, policy)

    def _compose(self, name: str, composition: Composition, within: Sequence[str]) -> Policy:
        where = f"policies.{name}"
        if bool(composition.scorers) == bool(composition.policy):
            raise ConfigError(f"{where}: give either scorers or a policy that chooses")
        if composition.policy:
            if composition.picker:
                raise ConfigError(f"{where}: a picker goes with scorers, not with a policy")
            chooser = self._policy(composition.policy, within)
        else:
            chooser = self._scored(name, composition)
        if not composition.filters:
            return FilteredPolicy(name, {}, chooser) if composition.policy else chooser
        filters = {each: self._part("filter", each, f"{where}.filters") for each in composition.filters}
        return FilteredPolicy(name, filters, chooser)

    def _scored(self, name: str, composition: Composition) -> Policy:
        where = f"policies.{name}.scorers"
        for part, weight in composition.scorers.items():
            if not (isfinite(weight) and weight > 0):
                raise ConfigError(f"{where}: the weight of {part} is {weight}; give one above 0")
        scorers = {part: self._part("scorer", part, where) for part in composition.scorers}
        pulls = {getattr(scorer, "pull", "spread") for scorer in scorers.values()}
        if pulls == {"reuse"} and where not in self._warned:
            self._warned.add(where)
            log.warning(
                "%s: every scorer favours reuse and none spreads load; requests will pile up on one worker",
                where,
            )
        picker = self._part("picker", composition.picker or "max", f"policies.{name}.picker")
        weighted = {part: (scorer, composition.scorers[part]) for part, scorer in scorers.items()}
        return ScoringPolicy(name, weighted, picker)

    def _part(self, kind: Kind, name: str, where: str) -> Any:
        """A new one of what is named; `where` begins a refusal. Raises ConfigError."""
        if name == "topology" and kind == "filter":
            return TopologyFilter(self._place)
        if make := SHIPPED[kind].get(name):
            return make()
        plugin = self._plugin(kind, name)
        if plugin is None:
            known = self.names(kind)
            words = meant(name, known) or f"; known: {', '.join(known)}"
            raise ConfigError(f"{where}: there is no {kind} '{name}'{words}")
        try:
            return plugin.make()
        except Exception as exc:  # noqa: BLE001  others' code, at the start
            raise ConfigError(f"{where}: {plugin.origin}: '{name}' cannot be created: {exc}") from exc

    def _plugin(self, kind: Kind, name: str) -> Plugin | None:
        for plugins in (self._file.plugins if self._file else {}, self._installed.plugins):
            if (plugin := plugins.get(name)) is not None and plugin.kind == kind:
                return plugin
        if name in self._installed.faults:
            raise ConfigError(self._installed.faults[name])
        return None


def is_shipped(name: str) -> bool:
    """And so tested, and without a guard."""
    return name in POLICIES or name in COMPOSITIONS


def worth_of(texts: Iterable[str]) -> dict[str, float]:
    """Return the worth of a block by medium, from `[policy] medium_worth`. Raises ConfigError."""
    return {**WORTH, **dict(map(_worth, texts))}


def _worth(text: str) -> tuple[str, float]:
    medium, _, share = text.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not medium or not 0.0 <= value <= 1.0:
        raise ConfigError(f"medium_worth: {text} is not MEDIUM=SHARE, the share from 0 to 1, as in CPU=0.8")
    return medium, value
