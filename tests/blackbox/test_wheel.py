"""Modules of the running gateway that are machine code: all that setup.py lists, or none."""

import ast
import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path

from loadtest.fleet import GATEWAY

ROOT = Path(__file__).parents[2]
FORMS = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in json.load(sys.stdin)}))
"""


def listed() -> list[str]:
    """Names of the modules that setup.py has compiled."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            return [path.removesuffix(".py").replace("/", ".") for path in ast.literal_eval(node.value)]
    raise AssertionError("setup.py names no modules")


async def test_a_wheel_has_each_listed_module_compiled_and_a_checkout_none() -> None:
    below = "kvgate." if os.environ.get("GATEWAY_PYTHON") else ""
    names = [f"{below}{name}" for name in listed()]
    python = await asyncio.create_subprocess_exec(GATEWAY[0], "-P", "-c", FORMS, stdin=PIPE, stdout=PIPE)
    out, _ = await python.communicate(json.dumps(names).encode())
    assert python.returncode == 0
    compiled = [name for name, path in json.loads(out).items() if path.endswith(".so")]
    assert compiled == (names if below else [])
