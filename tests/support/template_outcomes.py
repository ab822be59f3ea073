"""Text that a template renders, or how it fails."""

from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

UNLIMITED = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
TREE = [{"n": "a", "c": [{"n": "b", "c": []}]}, {"n": "d", "c": []}]
LONG = "line of a text\n" * 50


def values() -> dict[str, Any]:
    messages = [{"role": role, "content": f"{role} {i}", "calls": [i]} for i, role in enumerate("abab")]
    return {"messages": messages, "d": {"role": "x", "n": 3}, "s": "a text", "long": LONG, "tree": TREE}


def outcome(environment: jinja2.Environment, source: str) -> str:
    try:
        return environment.from_string(source).render(values())
    except Exception as exc:  # noqa: BLE001 - any way to fail must be the same
        return f"{type(exc).__name__}: {exc}"
