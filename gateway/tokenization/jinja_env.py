"""Jinja environment of Hugging Face's chat templates: sandboxed, with its filters and globals."""

import json
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _Generation(Extension):
    """Jinja tag `{% generation %}`, which marks the model's output for training; in a prompt it is only its
    body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Context(Context):
    """Context of a template's variables, without jinja's support for imported or extended templates: chat
    templates stand alone, and it costs as much as rendering a short prompt."""

    def __init__(
        self, environment: Any, parent: dict[str, Any], name: str | None, blocks: Any, globals: Any = None
    ) -> None:
        self.environment, self.name = environment, name
        self.parent, self.vars = parent, {}
        self.eval_ctx = nodes.EvalContext(environment, name)
        self.exported_vars, self.globals_keys = set(), _NO_KEYS
        self.blocks = {block: [body] for block, body in blocks.items()} if blocks else {}


_NO_KEYS: set[str] = set()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox with shortcuts for common lookups, which halve the time of most templates.

    Messages are dicts, and templates read them in both spellings; jinja tries attributes first and catches
    the error. Methods of built-in types carry no marks of being unsafe.
    """

    context_class = _Context

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        if type(obj) is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        if type(obj) is Namespace and attribute[0] != "_":
            value = getattr(obj, attribute, None)
            if type(value) in _HARMLESS:
                return value
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument not in _DICT_ATTRIBUTES:
            return obj[argument] if argument in obj else self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if type(__obj) is not BuiltinMethodType and __obj is not Namespace:
            return super().call(__context, __obj, *args, **kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        return __obj(*args, **kwargs)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_ATTRIBUTES = frozenset({"first", "last", "index", "index0", "previtem", "nextitem", "length"})
_STR_METHODS = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
_HARMLESS = (bool, int, str, list, dict)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment


ENVIRONMENT = _environment()
