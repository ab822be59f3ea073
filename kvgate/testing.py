"""The contract of policies, filters, scorers and pickers, for the tests of those who write one.

    def test_soonest_keeps_the_contract():
        kvgate.testing.verify(Soonest)

`kvgate policy test FILE` runs the same checks on a file.
"""

from collections.abc import Callable

from gateway.policies.framework.contract import ContractResult, ContractViolation, run
from gateway.policies.framework.plugins import METHODS, kind_of

__all__ = ["ContractResult", "ContractViolation", "results", "verify"]


def results(make: Callable[[], object], budget_s: float = 0.005) -> list[ContractResult]:
    """Each check of the contract, and what was wrong: `fault` is None where nothing was.

    `make` returns a new policy, filter, scorer or picker each time, as its class does. `budget_s` is the time
    that one choice among 1,000 workers may take. Raises TypeError if `make` returns something else.
    """
    kind = kind_of(part := make())
    if kind is None:
        raise TypeError(f"{type(part).__name__} must have one of the methods {', '.join(METHODS)}")
    return list(run(kind, make, budget_s))


def verify(make: Callable[[], object], budget_s: float = 0.005) -> None:
    """Run the contract's checks. Raises ContractViolation with each check that failed, one a line; see
    `results` for the arguments."""
    faults = [f"{each.check}: {each.fault}" for each in results(make, budget_s) if each.fault]
    if faults:
        raise ContractViolation("\n".join(faults))
