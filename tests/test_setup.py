"""`setup.py` compiles where it can, and else names the reason in one line."""

import ast
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parents[1]
LINE = "kvgate: not compiled, a request takes twice the CPU: "


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Arguments of each call of `setuptools.setup`, which does nothing."""
    found: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    for folder in ("kvgate", "gateway", "engines"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("from gateway.http import url\n")
    monkeypatch.setattr("setuptools.setup", lambda **arguments: found.append(arguments))
    monkeypatch.setattr("shutil.which", lambda command: f"/bin/{command}")
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: True)
    monkeypatch.delenv("GATEWAY_PURE", raising=False)
    monkeypatch.setattr(sys, "argv", ["setup.py", "bdist_wheel"])
    return found


def built(calls: list[dict[str, Any]]) -> dict[str, Any]:
    runpy.run_path(str(ROOT / "setup.py"))
    return calls[-1]


def test_a_wheel_compiles_where_a_compiler_is_there(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def mypycify(arguments: list[str], **options: object) -> list[Extension]:
        asked.extend(arguments)
        return [Extension("library", [])]

    monkeypatch.setattr("mypyc.build.mypycify", mypycify)
    (extension,) = built(calls)["ext_modules"]
    assert extension.optional, "a compiler that fails leaves the modules as they are"
    assert "build/sources/kvgate/gateway/proxy/exchange.py" in asked and capsys.readouterr().err == ""
    config = asked[0].removeprefix("--config-file=")
    assert "kvgate.*" in (tmp_path / config).read_text()


class Compiler:
    """A compiler for which a build waits that has two files compiled at once."""

    compiler_type = "unix"

    def __init__(self) -> None:
        self.two = Barrier(2, timeout=20.0)
        self.flags: dict[str, list[str]] = {}

    def compile(self, sources: list[str], extra_postargs: list[str], **_: object) -> list[str]:
        (source,) = sources
        self.flags[source] = extra_postargs
        if source != "stub.c":
            self.two.wait()
        return [f"{source}.o"]


@pytest.mark.parametrize("is_linked", [True, False])
def test_the_library_is_compiled_on_all_cores_and_stubs_are_built_where_it_is_there(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_linked: bool
) -> None:
    monkeypatch.setenv("GATEWAY_PURE", "1")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("pathlib.Path.exists", lambda path: is_linked)
    objects: dict[str, list[str]] = {}

    def build_one(command: build_ext, extension: Extension) -> None:
        flags = extension.extra_compile_args
        objects[extension.name] = command.compiler.compile(extension.sources, extra_postargs=flags)

    monkeypatch.setattr(build_ext, "build_extension", build_one)
    command = built(calls)["cmdclass"]["build_ext"](Distribution())
    compiler = command.compiler = Compiler()
    command.build_lib, command.include_dirs, command.parallel = str(tmp_path), [], None
    command.extensions = [Extension("library", ["a.c", "b.c"]), Extension("stub", ["stub.c"])]
    command.build_extensions()
    assert objects["library"] == ["a.c.o", "b.c.o"]
    assert compiler.flags["a.c"] == ["-fvisibility=hidden"]
    assert ("stub" in objects) == is_linked, "a stub without its library would hide the source"


def test_pip_fetches_the_compiler_of_the_lock_and_the_dependencies_with_their_types(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "egg_info"])
    mypy, *others = built(calls)["setup_requires"]
    assert f"\n{mypy} " in (ROOT / "requirements-dev.lock").read_text()
    assert any(each.startswith("msgspec") for each in others)
    monkeypatch.setenv("GATEWAY_PURE", "1")
    assert built(calls)["setup_requires"] == []


def fail(*_: object, **__: object) -> None:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("target", "value", "reason"),
    [
        ("shutil.which", lambda command: None, "no C compiler (cc)"),
        ("pathlib.Path.is_file", lambda path: False, "no Python.h (package python3-dev)"),
        ("mypyc.build.mypycify", fail, "mypyc failed: SystemExit(1)"),
    ],
)
def test_one_line_names_the_reason_not_to_compile(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    value: Any,
    reason: str,
) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(target, value)
    assert built(calls)["ext_modules"] == []
    assert capsys.readouterr().err == f"{LINE}{reason}\n"


def test_a_build_without_mypy_or_compiled_modules_says_so(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mypyc.build", None)
    assert built(calls)["ext_modules"] == []
    assert capsys.readouterr().err == f"{LINE}mypy is not installed\n"
    monkeypatch.setenv("GATEWAY_PURE", "1")
    assert built(calls)["ext_modules"] == []
    assert capsys.readouterr().err == f"{LINE}GATEWAY_PURE is set\n"


@pytest.mark.parametrize("command", ["editable_wheel", "sdist"])
def test_an_editable_checkout_and_an_sdist_are_the_folders_as_they_are(
    calls: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    arguments = built(calls)
    assert arguments["ext_modules"] == [] and capsys.readouterr().err == ""
    assert set(arguments["packages"]) == {"kvgate", "gateway", "engines"} and "package_dir" not in arguments


def test_a_wheel_is_made_of_a_copy_below_kvgate(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATEWAY_PURE", "1")
    (tmp_path / "build/sources/kvgate/gone").mkdir(parents=True)
    arguments = built(calls)
    assert set(arguments["packages"]) == {"kvgate", "kvgate.gateway", "kvgate.engines"}
    copy = tmp_path / arguments["package_dir"][""] / "kvgate"
    assert (copy / "engines/__init__.py").read_text() == "from kvgate.gateway.http import url\n"
    assert not (copy / "gone").exists(), "a file that was deleted stays in no wheel"


MODULE = '''"""from gateway import nothing."""

from __future__ import annotations

import engines
import gateway as home
import os, re
from gateway.core import (
    blocks,  # import gateway
    worker as from_gateway,
)
from engines . sim import Sim; from gateway import request; import engines

if True: import gateway.core as core


def gateway_of(gateway: object, text: str = "import gateway") -> object:
    from engines.vllm import Vllm as gateway

    yield from gateway.engines(f"{gateway} from gateway import x")
    raise ValueError(r"""
from gateway import x
""") from gateway.error
'''
BELOW = {
    "import engines\n": "from kvgate import engines\n",
    "import gateway as home": "import kvgate.gateway as home",
    "from gateway.core import (": "from kvgate.gateway.core import (",
    "from engines . sim import Sim; from gateway import request; import engines": (
        "from kvgate.engines . sim import Sim; from kvgate.gateway import request; from kvgate import engines"
    ),
    "if True: import gateway.core as core": "if True: import kvgate.gateway.core as core",
    "    from engines.vllm import Vllm as gateway": "    from kvgate.engines.vllm import Vllm as gateway",
}


@pytest.fixture
def below_kvgate(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setattr(sys, "argv", ["setup.py", "egg_info"])
    found: Callable[[str], str] = runpy.run_path(str(ROOT / "setup.py"))["below_kvgate"]
    return found


def test_imports_change_and_nothing_else(below_kvgate: Callable[[str], str]) -> None:
    """Texts, comments, names of other things and the numbers of lines stay."""
    expected = MODULE
    for line, changed in BELOW.items():
        assert line in expected
        expected = expected.replace(line, changed, 1)
    assert below_kvgate(MODULE) == expected
    assert below_kvgate(expected) == expected


@pytest.mark.parametrize("statement", ["import gateway.core", "import os, gateway", "import engines.sim, re"])
def test_an_import_that_cannot_change_on_its_line_stops_the_build(
    below_kvgate: Callable[[str], str], statement: str
) -> None:
    with pytest.raises(ValueError, match="line 2: import .*: import it with `from` or `as`"):
        below_kvgate(f"import re\n{statement}\n")


def test_each_module_of_the_checkout_changes_in_its_imports_only(below_kvgate: Callable[[str], str]) -> None:
    """Compared as syntax trees: two readings of each file, one of tokens and one of the grammar."""
    for folder in ("kvgate", "gateway", "engines"):
        for path in (ROOT / folder).rglob("*.py"):
            before, after = ast.parse(path.read_text()), ast.parse(below_kvgate(path.read_text()))
            assert ast.dump(Below().visit(before), include_attributes=False) == ast.dump(after), path


class Below(ast.NodeTransformer):
    """The same change, by the grammar."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if (node.module or "").split(".")[0] in ("gateway", "engines"):
            node.module = f"kvgate.{node.module}"
        return node

    def visit_Import(self, node: ast.Import) -> ast.Import | ast.ImportFrom:
        (first, *_) = node.names
        if first.name.split(".")[0] not in ("gateway", "engines"):
            return node
        if first.asname is None:
            return ast.ImportFrom("kvgate", [first], 0)
        return ast.Import([ast.alias(f"kvgate.{first.name}", first.asname)])


def test_constants_of_compiled_modules_are_final() -> None:
    """Compiled code looks up any other name of a module in a dictionary, at a hundred instructions each."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (compiled,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and "COMPILED" in ast.unparse(each.targets[0])
    )
    for path in compiled:
        for node in ast.parse((ROOT / path).read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    is_extended = f"\n{name} |= " in (ROOT / path).read_text()
                    assert is_extended or _makes_a_type(value), f"{path}: {name} is not Final"
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name.isupper():
                    assert "Final" in ast.unparse(annotation), f"{path}: {name} is not Final"
                    is_lost = ast.unparse(annotation) == "Final" and _begins_with_a_float(node.value)
                    assert not is_lost, f"{path}: {name} needs its type: mypyc loses a tuple of floats"


def _makes_a_type(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "NewType")


def _begins_with_a_float(value: ast.expr | None) -> bool:
    first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else None
    return isinstance(first, ast.Constant) and isinstance(first.value, float)
