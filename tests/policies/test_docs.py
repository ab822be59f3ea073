"""The page of policies names what there is, and what it shows works."""

import re
import tomllib
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.options import convert
from gateway.policies import COMPOSITIONS, FILTERS, PICKERS, POLICIES, SCORERS
from gateway.policies.library import Library

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("name", [*POLICIES, *COMPOSITIONS])
def test_every_policy_has_its_line(name: str) -> None:
    assert f"\n| `{name}` | " in PAGE


@pytest.mark.parametrize("name", [*FILTERS, *SCORERS, *PICKERS])
def test_every_part_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE[PAGE.index("## Composed of parts") :]


def test_the_composition_that_is_shown_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = convert(tomllib.loads(text), Config, "the page", strict=True)
    library = Library(compositions=config.policies)
    assert [library.policy(name).name for name in (config.policy, "fair_slo")] == ["mine", "fair_slo"]
