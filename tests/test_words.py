"""Rules of words, in the folders that follow them; and paths in backticks, which must exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CLEAN = ("kvgate", "gateway", "engines", "examples", "loadtest", "tests")
"""Folders that follow both rules."""
AVOIDED = re.compile(
    r"(?<![a-z])(t(?:old|ells?)|who(?:se|ever|m)|n(?:obody)|a(?:new)|i(?:n vain)|a(?:nswers nothing)"
    r"|(?:is|are|was|were) (?:not )?t(?:o be)|t(?:o be) had|as (?:it|they) s(?:hould be))(?![a-z])",
    re.IGNORECASE,
)
OTHERS = {
    ".proto",
    ".c",
    ".h",
    ".toml",
    ".yml",
    ".yaml",
    ".lua",
    ".js",
    ".html",
    ".css",
    ".sh",
    ".tpl",
    ".txt",
}
OTHERS |= {".conf", ".service", ".socket"}
"""Suffixes of files in other languages than Python, of which comments and texts follow the first rule."""
FIRST_WORDS = {"Of", "It", "Its", "One", "Those", "As", "By", "Some", "But", "What", "Who", "Whether"}
HISTORY = ROOT / "docs/development/history.md"
"""Page that is kept as it was written."""
QUOTED = ('user("Tell me.")', "no more are to be", "answers nothing alone")
"""Prompts with recorded answers, and examples of this file."""
TOPS = ("kvgate", "gateway", "engines", "tests", "loadtest", "docs", "deploy", "proto")
PATH = re.compile(rf"`((?:{'|'.join(TOPS)})/[A-Za-z0-9_./-]+\.(?:py|md|lua|proto|json|toml))`")


class Docstring(NamedTuple):
    """Docstring, and where it is; `is_of_code` is that of a function or class."""

    place: str
    text: str
    is_of_code: bool


@cache
def docstrings(folder: str) -> list[Docstring]:
    """Each docstring of a folder's files, those below constants and attributes too."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        of_code: set[ast.stmt] = set()
        for node in ast.walk(ast.parse(path.read_text())):  # what contains a node comes before it
            if isinstance(node, kinds):
                of_code.add(node.body[0])
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    place = f"{path.relative_to(ROOT)}:{node.lineno}: {text.split(maxsplit=8)[:8]}"
                    found.append(Docstring(place, text.strip(), node in of_code))
    return found


@pytest.mark.parametrize("folder", CLEAN)
def test_sentences_and_names_avoid_the_dialect(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if AVOIDED.search(line) and not any(quote in line for quote in QUOTED)
    ]
    assert not found, "\n".join(found)


def _others() -> list[Path]:
    """Files in other languages, without those that others wrote."""
    tops = ("deploy", "engines", "examples", "gateway", "loadtest", "proto", "tests", ".github")
    found = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in OTHERS]
    found += [*(ROOT / "deploy").rglob("*.json"), ROOT / "deploy/Containerfile", ROOT / "Makefile"]
    found += [ROOT / ".ci/run", ROOT / "mkdocs.yml", ROOT / "pyproject.toml"]
    return [path for path in sorted(found) if not {"vendor", "data", "results"} & set(path.parts)]


def test_other_languages_avoid_the_dialect() -> None:
    files = _others()
    assert {path.suffix for path in files} >= OTHERS, "each language is read"
    found = [
        f"{path.relative_to(ROOT)}:{number}: '{word[0]}' in: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (word := AVOIDED.search(line))
    ]
    assert not found, "\n".join(found)


HARD_TO_READ = re.compile(
    r"(?<!there )\b(?:is|are|was) no (?!longer\b)\w|\bis none of\b|\btaken for\b|\bof a kind that\b"
    r"|\bknown here\b|\bbehind (?:the end|it)\b|\bon as one\b|\basked for by\b|\bneither more\b|\btheirs\?",
    re.IGNORECASE,
)
"""Turns in errors, log lines and help that had to be read twice."""
FORMER_TEXTS = (
    "no worker answered, 2 tried; no more are to be",
    "/v1/realtime is a WebSocket, and this was no offer to go on as one",
    "a prefill worker answers nothing alone",
    "Neither more of a replay nor its end comes",
    "they are a pair again; is --tokenizer theirs?",
)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings of a module but its docstrings, with their lines; of an f-string what is written out."""
    nodes = list(ast.walk(tree))
    documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.lineno, node.value


def test_texts_for_users_are_read_once() -> None:
    def is_hard(text: str) -> bool:
        return bool(HARD_TO_READ.search(text) or AVOIDED.search(text))

    assert all(map(is_hard, FORMER_TEXTS)) and not is_hard("there is no worker 'a'; it is no longer up")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for top in ("kvgate", "gateway", "engines")
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, text in _texts(ast.parse(path.read_text()))
        if is_hard(text)
    ]
    assert not found, "\n".join(found)


def test_pages_avoid_the_dialect() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}:{number}: '{word[0]}' in: {line.strip()}"
        for page in (*pages, *sorted((ROOT / "docs").rglob("*.md")))
        if page != HISTORY
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if (word := AVOIDED.search(line))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CLEAN)
def test_docstrings_make_sense_alone(folder: str) -> None:
    found = [
        place
        for place, text, _ in docstrings(folder)
        if text and re.split(r"\W", text.split()[0])[0] in FIRST_WORDS
    ]
    assert not found, "\n".join(found)


STARTS = re.compile(r"Raises |For |None (?:for|where|if|unless) |`\w+`")
"""First words of docstrings that name no subject: a condition, an error or a parameter."""


@pytest.mark.parametrize("folder", ("gateway", "engines", "loadtest"))
def test_docstrings_of_functions_and_classes_have_a_subject(folder: str) -> None:
    found = [place for place, text, is_of_code in docstrings(folder) if is_of_code and STARTS.match(text)]
    assert not found, "\n".join(found)


def test_paths_in_backticks_exist() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts += [path for top in ("gateway", "engines") for path in (ROOT / top).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(texts)
        if path != HISTORY
        for name in PATH.findall(path.read_text())
        if not (ROOT / name).exists()
    ]
    assert not found, "\n".join(found)


FLAG = re.compile(r"--[a-z]")


def _client_errors() -> set[str]:
    """Names of the errors that clients get: `GatewayError` and all below it."""
    names = {"GatewayError"}
    for node in ast.parse((ROOT / "gateway/core/errors.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in names for base in node.bases):
            names.add(node.name)
    return names


def _flags_in_client_errors(tree: ast.AST, errors: set[str]) -> Iterator[tuple[int, str]]:
    """Texts with a flag in functions that make a client's error, docstrings left out."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        called = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        if called & errors:
            documented = ast.get_docstring(function, clean=False)
            for node in nodes:
                match node:
                    case ast.Constant(value=str(text)) if text != documented and FLAG.search(text):
                        yield node.lineno, text


def test_errors_of_clients_name_no_flag_of_the_gateway() -> None:
    """The admin API is left out: its callers are operators."""
    errors = _client_errors()
    sample = ast.parse('def find():\n    text = "open it with --route"\n    raise NoWorker(text)')
    assert list(_flags_in_client_errors(sample, errors)) == [(2, "open it with --route")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        if path.parent.name != "admin"
        for line, text in _flags_in_client_errors(ast.parse(path.read_text()), errors)
    ]
    assert not found, "\n".join(found)


FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELLS = ("", "bash", "sh", "shell", "console")
COMMAND = re.compile(
    r"\$ |[\w/.~-]*\b(?:kvgate|curl|vllm|python3?|pip|make|podman|docker|kubectl|helm|openssl|aiperf|envoy) "
)
UNUSABLE = re.compile(r"^\$ |…|(?:^|\s)\.\.\.(?:\s|$)|\bcurl\b.* :\d")
"""A prompt, a left-out argument, an address without a host: nothing that can be pasted."""


def _commands(text: str) -> Iterator[str]:
    """Commands of the shell blocks, each with its continuation lines and without its comment."""
    for language, block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if language in SHELLS and COMMAND.match(line):
                yield line.split(" #")[0]


def test_commands_in_the_documentation_can_be_pasted() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    commands = [(page, command) for page in sorted(pages) for command in _commands(page.read_text())]
    assert len(commands) > 40
    found = [f"{page.relative_to(ROOT)}: {line}" for page, line in commands if UNUSABLE.search(line)]
    assert not found, "\n".join(found)


NAVIGATION = re.compile(r"^ +- (?:([^:\n{]+): ?)?(\S+\.md)?$", re.MULTILINE)
GENERATED = {
    "security.md": "SECURITY.md",
    "development.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def test_the_sidebar_has_each_page_once_and_under_the_name_of_its_heading() -> None:
    entries = NAVIGATION.findall((ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2])
    headings = {}
    for name, page in entries:
        if page:
            path = ROOT / GENERATED.get(page, f"docs/{page}")
            headings[page] = path.read_text().partition("\n")[0].removeprefix("# ")
            assert name in ("", "Home", headings[page]), page
    assert len(headings) > 30 and len(headings) == len([page for _, page in entries if page])
    names = [*headings.values(), *(name for name, page in entries if not page)]
    twice = {name for name in names if [each.lower() for each in names].count(name.lower()) > 1}
    assert twice <= {"Benchmarks"}, "its page is that of the section"


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
