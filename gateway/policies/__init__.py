"""Choosers of workers: `base.py` is the protocol, each policy is a file, `POLICIES` names them."""

from collections.abc import Callable, Mapping

from gateway.policies.base import Policy
from gateway.policies.least_load import LeastLoad
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.policies.round_robin import RoundRobin

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "prefix_overlap": PrefixOverlap,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
}
