"""Rules of words, in the folders that follow them; and paths in backticks, which must exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLEAN = ("gateway", "engines", "loadtest", "tests")
"""Folders that follow both rules."""
AVOIDED = re.compile(
    r"(?<![a-z])(t(?:old|ells?)|who(?:se|ever|m)|n(?:obody)|a(?:new))(?![a-z])", re.IGNORECASE
)
FIRST_WORDS = {"Of", "It", "Its", "One", "Those", "As", "By", "Some", "But", "What", "Who", "Whether"}
QUOTED = ('user("Tell me.")',)
"""Prompts with recorded answers."""
TOPS = ("gateway", "engines", "tests", "loadtest", "docs", "deploy", "proto")
PATH = re.compile(rf"`((?:{'|'.join(TOPS)})/[A-Za-z0-9_./-]+\.(?:py|md|lua|proto|json|toml))`")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those below constants and attributes too."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


@pytest.mark.parametrize("folder", CLEAN)
def test_sentences_and_names_avoid_the_dialect(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if AVOIDED.search(line) and not any(quote in line for quote in QUOTED)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CLEAN)
def test_docstrings_make_sense_alone(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.split(maxsplit=8)[:8]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text()))
        if text.split() and re.split(r"\W", text.split()[0])[0] in FIRST_WORDS
    ]
    assert not found, "\n".join(found)


def test_paths_in_backticks_exist() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts += [path for top in ("gateway", "engines") for path in (ROOT / top).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(texts)
        if path.name != "CHANGELOG.md"
        for name in PATH.findall(path.read_text())
        if not (ROOT / name).exists()
    ]
    assert not found, "\n".join(found)


RELATIVE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|lua))`")


def test_paths_in_docstrings_of_the_gateway_exist() -> None:
    """Paths start at the repository, at `gateway/`, at `tests/`, or at the file's own folder."""
    found = []
    for top in ("gateway", "engines"):
        for path in sorted((ROOT / top).rglob("*.py")):
            starts = (ROOT, ROOT / "gateway", ROOT / "tests", path.parent, path.parent.parent)
            for name in RELATIVE.findall(path.read_text()):
                if not any((start / name).exists() for start in starts):
                    found.append(f"{path.relative_to(ROOT)}: {name}")
    assert not found, "\n".join(found)
