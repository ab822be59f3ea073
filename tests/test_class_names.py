"""Names of classes: a reader who searches for a class finds one definition.

The wire structs of engine adapters count as one: each describes its engine's message of that name.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent


def wire_structs(classes: list[ast.ClassDef]) -> set[str]:
    """Names of the classes of a module that derive from msgspec's Struct, directly or through one another."""
    found = {"Struct"}
    for node in classes:  # a base is defined before the classes that derive from it
        bases = {base.value if isinstance(base, ast.Subscript) else base for base in node.bases}
        if any(isinstance(base, ast.Name) and base.id in found for base in bases):
            found.add(node.name)
    return found


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(set)
    for path in sorted(
        path for top in ("kvgate", "gateway", "engines", "loadtest") for path in (ROOT / top).rglob("*.py")
    ):
        name = str(path.relative_to(ROOT))
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        wire = wire_structs(classes) if name.startswith("engines/") else set()
        for node in classes:
            places[node.name].add(
                "a wire struct in engines/" if node.name in wire else f"{name}:{node.lineno}"
            )
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_each_class_of_the_helpers_is_named_for_its_subject() -> None:
    """Each class in tests/support has a name of its own; none is a mere world."""
    places = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT / "tests"))
    helpers = {name: [path for path in found if path.parts[0] == "support"] for name, found in places.items()}
    assert sum(map(len, helpers.values())) > 60
    assert not {name: found for name, found in helpers.items() if len(found) > 1}
    assert places["World"] == []


def test_wire_structs_are_recognized_by_their_bases() -> None:
    source = (
        "class A(Struct, tag='x'): ...\nclass B(A): ...\nclass C(Generic[T], B): ...\nclass D(Protocol): ..."
    )
    assert wire_structs(ast.parse(source).body) == {"Struct", "A", "B", "C"}  # type: ignore[arg-type]
