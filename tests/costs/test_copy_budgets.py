"""Waits pay for copies of a prefix; what is no longer hot buys nothing."""

import pytest

from gateway.core.blocks import BlockHash
from gateway.costs.copy_budgets import HALF_S, MAX_PREFIXES, CopyBudgets

A, B = BlockHash(1), BlockHash(2)


def test_waits_add_up_until_a_copy_is_made() -> None:
    budgets = CopyBudgets()
    assert budgets.of(A, 0.0) == 0
    budgets.waited(A, 1.0, 0.0)
    budgets.waited(A, 2.0, 0.0)
    budgets.waited(B, 5.0, 0.0)
    assert budgets.of(A, 0.0) == pytest.approx(3.0)
    budgets.spent(A)
    assert (budgets.of(A, 0.0), budgets.of(B, 0.0)) == (0, pytest.approx(5.0))
    budgets.spent(A)
    assert repr(budgets) == "CopyBudgets(1 prefixes)"


def test_waits_halve_with_time_which_may_stand_still_or_jump_back() -> None:
    budgets = CopyBudgets()
    budgets.waited(A, 4.0, 100.0)
    assert budgets.of(A, 100.0 + HALF_S) == pytest.approx(2.0)
    assert budgets.of(A, 0.0) == pytest.approx(4.0)
    budgets.waited(A, 1.0, 100.0 + HALF_S)
    assert budgets.of(A, 100.0 + HALF_S) == pytest.approx(3.0)


def test_what_no_copy_would_have_spared_is_not_counted() -> None:
    budgets = CopyBudgets()
    budgets.waited(A, 0.0, 0.0)
    budgets.waited(A, -1.0, 0.0)
    assert repr(budgets) == "CopyBudgets(0 prefixes)"


def test_a_flood_of_prefixes_is_bounded_and_the_latest_stay() -> None:
    budgets = CopyBudgets()
    for number in range(MAX_PREFIXES + 100):
        budgets.waited(BlockHash(number), 1.0, 0.0)
    assert repr(budgets) == f"CopyBudgets({MAX_PREFIXES} prefixes)"
    assert budgets.of(BlockHash(99), 0.0) == 0
    assert budgets.of(BlockHash(MAX_PREFIXES + 99), 0.0) > 0


def test_a_twin_has_the_same_budgets_and_spends_its_own() -> None:
    budgets = CopyBudgets()
    budgets.waited(A, 1.0, 0.0)
    twin = budgets.twin()
    twin.spent(A)
    assert budgets.of(A, 0.0) > 0 == twin.of(A, 0.0)
