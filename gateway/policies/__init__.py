"""Routing policies: `base.py` has the interfaces, each policy is a file, and these tables name them.

Beside them `disaggregation.py` decides where a prompt is computed. What choices cost is in `costs/`.

`policies/framework/registry.py` finds a policy by its name: a shipped one, a composition of the
configuration, or a plugin.
"""

from collections.abc import Callable, Mapping

from gateway.policies.base import Filter, Picker, Policy, Scorer
from gateway.policies.baselines import Random, RoundRobin
from gateway.policies.composition import Composition
from gateway.policies.consistent_hash import ConsistentHash, ConsistentHashScorer
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.policies.latency_slo import HeadroomScorer, LatencySlo
from gateway.policies.least_load import LeastLoad, LoadScorer
from gateway.policies.lora_affinity import LoraScorer
from gateway.policies.pickers import BestOfTwo, Max, Weighted
from gateway.policies.power_of_two import PowerOfTwo
from gateway.policies.prefix_overlap import OverlapScorer, PrefixOverlap
from gateway.policies.session_affinity import SessionAffinity, SessionScorer
from gateway.policies.tenant_fairness import FairnessFilter
from gateway.policies.topology import TopologyFilter

DEFAULT = "expected_ttft"

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "expected_ttft": ExpectedTtft,
    "prefix_overlap": PrefixOverlap,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
    "random": Random,
    "power_of_two": PowerOfTwo,
    "session_affinity": SessionAffinity,
    "consistent_hash": ConsistentHash,
    "latency_slo": LatencySlo,
}

COMPOSITIONS: Mapping[str, Composition] = {
    "lora_affinity": Composition(scorers={"lora_affinity": 1, "prefix_overlap": 1, "least_load": 2}),
    "topology": Composition(filters=["topology"], policy=DEFAULT),
    "tenant_fairness": Composition(filters=["tenant_fairness"], policy=DEFAULT),
}
"""Shipped policies that are composed of filters, scorers and other policies."""

FILTERS: Mapping[str, Callable[[], Filter]] = {
    "topology": TopologyFilter,
    "tenant_fairness": FairnessFilter,
}

SCORERS: Mapping[str, Callable[[], Scorer]] = {
    "prefix_overlap": OverlapScorer,
    "least_load": LoadScorer,
    "session_affinity": SessionScorer,
    "consistent_hash": ConsistentHashScorer,
    "lora_affinity": LoraScorer,
    "latency_slo": HeadroomScorer,
}

PICKERS: Mapping[str, Callable[[], Picker]] = {
    "max": Max,
    "weighted": Weighted,
    "best_of_two": BestOfTwo,
}
