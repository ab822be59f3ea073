"""Choosers of workers: `base.py` is the protocol, each policy is a file, `POLICIES` names them."""

from collections.abc import Callable, Iterable, Mapping

from gateway.core.errors import ConfigError
from gateway.policies.base import Policy
from gateway.policies.expected_ttft import ExpectedTtft
from gateway.policies.least_load import LeastLoad
from gateway.policies.prefix_overlap import WORTH, PrefixOverlap
from gateway.policies.round_robin import RoundRobin

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "expected_ttft": ExpectedTtft,
    "prefix_overlap": PrefixOverlap,
    "least_load": LeastLoad,
    "round_robin": RoundRobin,
}


def policy_of(name: str, medium_worth: Iterable[str] = ()) -> Policy:
    """A policy by its name, with the options that it reads. Raises ConfigError."""
    made = POLICIES[name]
    if made is PrefixOverlap or made is ExpectedTtft:  # `name` is no text where a class is compiled
        return made({**WORTH, **dict(map(_worth, medium_worth))})
    return made()


def _worth(text: str) -> tuple[str, float]:
    medium, _, share = text.partition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not medium or not 0.0 <= value <= 1.0:
        raise ConfigError(f"--medium-worth {text}: give MEDIUM=SHARE, the share from 0 to 1, as in CPU=0.8")
    return medium, value
