"""Package `kvgate`, the public name: what it exports, without importing more than is asked for."""

import ast
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

import gateway
import gateway.library
import kvgate
import kvgate.testing
from tests import ROOT


def test_kvgate_exports_the_library_and_the_types_of_policies() -> None:
    assert kvgate.connect is gateway.library.connect and kvgate.request is gateway.request
    assert [name for name in kvgate.__all__ if not hasattr(kvgate, name)] == []
    assert issubclass(kvgate.NoWorker, kvgate.GatewayError)


def test_each_name_has_its_type() -> None:
    """Type checkers see the imports of one block, programs what is imported on first use."""
    tree = ast.parse((ROOT / "kvgate/__init__.py").read_text())
    typed = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    ]
    assert sorted(typed) == sorted(kvgate.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    name = "nothing"
    with pytest.raises(AttributeError, match="module 'kvgate' has no attribute 'nothing'"):
        getattr(kvgate, name)


@pytest.mark.process
def test_what_is_not_asked_for_is_not_imported() -> None:
    code = (
        "import sys, kvgate; assert 'gateway' not in sys.modules; "
        "kvgate.Choice; assert 'gateway.app' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.process
def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "kvgate", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith(f"kvgate {kvgate.__version__} (")


class Soonest:
    name = "soonest"

    def choose(
        self, query: kvgate.Query, candidates: Sequence[kvgate.Candidate], rng: random.Random
    ) -> kvgate.Choice:
        costs = [each.uncached_tokens + each.booked_tokens for each in candidates]
        return kvgate.Choice(kvgate.pick_lowest(costs, rng), "fewest tokens ahead", tuple(costs))


class First(Soonest):
    def choose(
        self, query: kvgate.Query, candidates: Sequence[kvgate.Candidate], rng: random.Random
    ) -> kvgate.Choice:
        return kvgate.Choice(0, "the first")


def test_a_policy_that_keeps_the_contract_is_verified() -> None:
    kvgate.testing.verify(Soonest, budget_s=60.0)
    assert all(each.fault is None for each in kvgate.testing.results(Soonest, budget_s=60.0))


def test_each_broken_rule_is_named() -> None:
    with pytest.raises(kvgate.testing.ContractViolation, match="equal workers share the requests: .*rng"):
        kvgate.testing.verify(First)


def test_a_thing_of_no_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="object must have one of the methods choose, keep, score, pick"):
        kvgate.testing.verify(object)
