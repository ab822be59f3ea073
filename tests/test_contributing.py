"""The table of changes in CONTRIBUTING.md: tables, classes and contract suites are where its rows say."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from engines import ENGINES, KV_CONNECTORS
from gateway.apis.to_chat import TRANSLATORS
from gateway.policies import FILTERS, PICKERS, POLICIES, SCORERS
from tests import ROOT

FILE = re.compile(r"`((?:gateway|engines|tests|loadtest)/[\w./]+\.py)`")
TABLE = re.compile(r"`(_?[A-Z][A-Z_]{2,})`")
CLASS = re.compile(r"`([a-z_]+)\.([a-z_.]+\.)?([A-Z]\w+)(?:\.\w+)?`")
"""A class by its folder below `gateway` or `gateway/observability`, and file: `routing.router.Router`."""
ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<where>[^|]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("| change | where |")[2].partition("\n\n")[0]
    return [(row["change"], row["where"]) for row in ROW.finditer(text)]


def defined(path: str) -> Iterator[str]:
    """Names that a file assigns."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.parametrize(("change", "where"), rows(), ids=[change for change, _ in rows()])
def test_a_table_is_in_a_file_of_its_row(change: str, where: str) -> None:
    names = {name for path in FILE.findall(where) for name in defined(path)}
    assert set(TABLE.findall(where)) <= names


def test_the_table_has_a_row_for_each_extension_point() -> None:
    changes = {change for change, _ in rows()}
    points = [
        "a policy",
        "an engine",
        "a KV connector",
        "an index backend",
        "a route",
        "an option",
        "a metric",
        "a component",
    ]
    assert {f"add {point}" for point in points} <= changes


def test_a_class_in_the_text_is_in_its_file() -> None:
    tops = (ROOT / "gateway", ROOT / "gateway" / "observability")
    found = CLASS.findall((ROOT / "CONTRIBUTING.md").read_text())
    named = {(top / room, file, name) for room, file, name in found for top in tops if (top / room).is_dir()}
    unknown = [
        f"{folder.name}.{file}{name}"
        for folder, file, name in named
        if not hasattr(
            import_module(".".join((*folder.relative_to(ROOT).parts, *file.split("."))).strip(".")), name
        )
    ]
    assert len(named) > 20 and unknown == []


@pytest.mark.parametrize(
    ("members", "folder"),
    [
        ([*POLICIES.values(), *FILTERS.values(), *SCORERS.values(), *PICKERS.values()], "gateway/policies"),
        ([type(engine) for engine in ENGINES.values()], "engines"),
        ([type(connector) for connector in KV_CONNECTORS.values()], "engines/connectors"),
        ([each for by_engine in TRANSLATORS.values() for each in by_engine.values()], "gateway/apis"),
    ],
    ids=["policies", "engines", "connectors", "translators"],
)
def test_a_member_of_a_table_is_defined_in_its_folder(members: list[object], folder: str) -> None:
    for member in members:
        path = ROOT / f"{inspect.getmodule(member).__name__.replace('.', '/')}.py"  # type: ignore[union-attr]
        assert path.parent == ROOT / folder


def test_the_folder_of_policies_has_nothing_but_choices_their_interfaces_and_tables() -> None:
    """Costs of choices are in `costs`."""
    members = [*POLICIES.values(), *FILTERS.values(), *SCORERS.values(), *PICKERS.values()]
    files = {path.stem for path in (ROOT / "gateway/policies").glob("*.py")}
    choices = {member.__module__.rpartition(".")[2] for member in members}
    assert files - choices == {"__init__", "base", "composition", "disaggregation"}


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_a_policy_is_put_to_the_contract(make: type) -> None:
    test = ROOT / "tests/policies" / f"test_{make.__module__.rpartition('.')[2]}.py"
    head = f"class Test{make.__name__}(PolicyContract)"
    assert test.is_file() and head in test.read_text(), f"{test.relative_to(ROOT)} needs `{head}`"
