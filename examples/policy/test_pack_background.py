"""The policy keeps the contract that every policy has to keep; `kvgate policy test` runs the same checks."""

from pack_background import PackBackground

import kvgate.testing


def test_the_policy_keeps_the_contract() -> None:
    kvgate.testing.verify(PackBackground, budget_s=60.0)  # a machine that runs tests may be busy
