"""The page of policies names every policy and part, and its examples work."""

import re
import tomllib
from math import inf
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.config.reading import convert
from gateway.core.decision import Candidate, Query
from gateway.policies import COMPOSITIONS, FILTERS, PICKERS, POLICIES, SCORERS
from gateway.policies.framework.contract import run
from gateway.policies.framework.plugins import read_file
from gateway.policies.framework.registry import PolicyRegistry
from gateway.routing.active_policy import library_of, policy_of
from tests import ROOT

PAGE = (ROOT / "docs" / "guides" / "policies.md").read_text()


def config_under(title: str) -> Config:
    """Configuration in TOML under a title."""
    text = PAGE[PAGE.index(title) :].partition("```toml\n")[2].partition("```")[0]
    return convert(tomllib.loads(text), Config, "the page")


def test_the_example_of_an_ab_test_is_valid() -> None:
    config = config_under("## A/B tests")
    assert policy_of(config, library_of(config)).name == "ab"


@pytest.mark.parametrize("name", [*POLICIES, *COMPOSITIONS])
def test_every_policy_has_a_row(name: str) -> None:
    assert f"\n| `{name}` | " in PAGE


@pytest.mark.parametrize("name", [*FILTERS, *SCORERS, *PICKERS])
def test_every_part_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE[PAGE.index("## Compositions") :]


def test_the_example_of_a_composition_is_valid() -> None:
    config = config_under("## Compositions")
    library = PolicyRegistry(compositions=config.policies)
    assert [library.policy(name).name for name in (config.policy.name, "fair_slo")] == ["mine", "fair_slo"]


@pytest.mark.parametrize("text", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_example_files_are_policies_and_parts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "my_policy.py"
    path.write_text(text)
    (plugin,) = read_file(path).plugins.values()
    assert [result for result in run(plugin.kind, plugin.make, inf) if result.fault] == []


def test_all_fields_that_a_policy_sees_are_named() -> None:
    fields = {*Query.__match_args__, *Candidate.__match_args__}
    assert [field for field in fields if f"`{field}`" not in PAGE[PAGE.index("## Write a policy") :]] == []
