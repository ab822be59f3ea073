"""No two files import each other, neither directly nor through others, nor for types alone."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("gateway", "engines")


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the known modules that a source names in imports, wherever they stand in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names.intersection(known)
            yield from submodules
            if len(submodules) < len(names) and node.module in known:
                yield node.module


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each sorted (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        open_.append(module)
        for other in imports.get(module, ()):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in open_:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            at = open_.index(module)
            group, open_[at:] = open_[at:], []
            if len(group) > 1 or module in imports.get(module, ()):
                found.append(sorted(group))

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return sorted(found)


def test_no_files_import_each_other() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    modules = {module_of(file): file for file in files}
    assert len(modules) > 400
    imports = {name: sorted(set(imported(file.read_text(), modules))) for name, file in modules.items()}
    assert circles(imports) == []


def test_a_circle_is_found_through_types_and_functions() -> None:
    known = {"a", "b", "c", "d"}
    sources = {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import B\n",
        "b": "def f():\n    import c\n",
        "c": "from a import A\nfrom d import D\n",
        "d": "from typing import Any\n",
    }
    assert circles({name: sorted(imported(source, known)) for name, source in sources.items()}) == [
        ["a", "b", "c"]
    ]
