"""Jinja environment of Hugging Face's chat templates: sandboxed, with its filters and globals, and a budget
of time and memory (`sandbox/render_budget.py`)."""

import re
from collections import OrderedDict
from datetime import datetime
from itertools import pairwise
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from markupsafe import Markup

from gateway.tokenization.sandbox.budgeted_code import (
    DICT_ATTRIBUTES,
    LOOP_ATTRIBUTES,
    BudgetedCode,
    check_source,
    check_tree,
)
from gateway.tokenization.sandbox.priced_filters import priced_filters, priced_tests
from gateway.tokenization.sandbox.priced_methods import (
    FormatMethod,
    GrowingMethod,
    called,
    charge_method,
    dated,
    operated,
)
from gateway.tokenization.sandbox.render_budget import (
    GROWING_METHODS,
    SHORT,
    SHRINKING_METHODS,
    OverBudget,
    RenderContext,
)


class _Generation(Extension):
    """Jinja tag `{% generation %}`, which marks the model's output for training; in a prompt it is only its
    body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


_GENERATION = re.compile(r"\bgeneration\b")
MAX_KNOWN = 256
"""Templates of which the code is kept: some 100 kB each, for models that are served again."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox with shortcuts for common lookups, which halve the time of most templates, and with a budget.

    Messages are dicts, and templates read them in both spellings; jinja tries attributes first and catches
    the error. Methods of built-in types carry no marks of being unsafe: those that may be called are listed.
    """

    context_class = RenderContext
    code_generator_class = BudgetedCode
    intercepted_binops = frozenset({"-", "*", "/", "//", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: OrderedDict[str, CodeType] = OrderedDict()

    def from_string(self, source: Any, globals: Any = None, template_class: Any = None) -> jinja2.Template:
        """Template of a source. Raises TemplateError, or Unpriced for one that is not rendered here."""
        code = self.known(source)
        if code is None:
            code = self.code_of(source)
            self.know(source, code)
        return jinja2.Template.from_code(self, code, self.make_globals(None), None)

    def code_of(self, source: str) -> CodeType:
        """Compile a template. Raises TemplateError, or Unpriced for one that is not rendered here."""
        check_source(source)
        tree = self._parse(source, None, None)
        check_tree(tree, self.filters, FILTERS)
        return self._compile(self._generate(tree, None, None), "<template>")

    def know(self, source: str, code: CodeType) -> None:
        """Remember a template's code, which another process may have compiled."""
        self._known[source] = code
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def known(self, source: str) -> CodeType | None:
        """Code of a template that is compiled."""
        return self._known.get(source)

    def without_generation(self, source: str) -> jinja2.Template:
        """Template of a source for an environment without the tag `generation`, as engines' checks at start
        have it. Raises as `from_string`, and TemplateSyntaxError where the tag is used."""
        if _GENERATION.search(source):
            words = [value for _, kind, value in self.lex(source) if kind != "whitespace"]
            if any(begin.startswith("{%") and word in _Generation.tags for begin, word in pairwise(words)):
                raise jinja2.TemplateSyntaxError("Encountered unknown tag 'generation'.", 1)
        return self.from_string(source)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        if type(obj) is str and attribute in SHRINKING_METHODS:
            return getattr(obj, attribute)
        if type(obj) is str and attribute in GROWING_METHODS:
            return GrowingMethod(obj, attribute)
        if type(obj) is Namespace:
            return self.of_namespace(obj, attribute)
        return super().getattr(obj, attribute)

    def of_namespace(self, obj: Any, attribute: str) -> Any:
        """Attribute of what is a namespace, most probably."""
        if type(obj) is not Namespace:
            return self.getattr(obj, attribute)
        if attribute[0] != "_":
            value = object.__getattribute__(obj, "_Namespace__attrs").get(attribute)
            if type(value) in _HARMLESS:
                return value
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument not in DICT_ATTRIBUTES:
            return obj[argument] if argument in obj else self.undefined(obj=obj, name=argument)
        if isinstance(argument, tuple):
            raise OverBudget("it looks up a tuple")
        if isinstance(obj, str | type) and isinstance(argument, str):
            return (
                self.getattr(obj, argument) if isinstance(obj, str) else self.unsafe_undefined(obj, argument)
            )
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """True for plain values and for the methods that are listed, of no type."""
        if isinstance(obj, type) or not super().is_safe_attribute(obj, attr, value):
            return False
        return not callable(value) or isinstance(obj, Namespace) or attr in _METHODS.get(type(obj), ())

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` and `str.format_map` as a method that pays."""
        is_format = isinstance(value, BuiltinMethodType) and value.__name__ in ("format", "format_map")
        return (
            FormatMethod(value.__self__, value.__name__)
            if is_format and type(value.__self__) is str
            else None
        )

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return operated(context, operator, left, right, self.binop_table[operator])

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if type(__obj) is not BuiltinMethodType and __obj is not Namespace:
            if type(__obj) in _PAYING or __obj is dict:
                kwargs.pop("_loop_vars", None)
                kwargs.pop("_block_vars", None)
                return called(__context, __obj, args, kwargs)
            return super().call(__context, __obj, *args, **kwargs)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if __obj is Namespace:
            return called(__context, __obj, args, kwargs)
        owner: Any = __obj.__self__  # type: ignore[union-attr]
        kind = type(owner)
        if kind is datetime:
            return dated(__context, __obj, args, kwargs)
        is_usual = (kind is str or kind is dict) and len(owner) <= SHORT
        if kwargs or not is_usual or (args and (type(args[0]) is not str or len(args[0]) > SHORT)):
            charge_method(__context, owner, __obj.__name__, (*args, *kwargs.values()))
        return __obj(*args, **kwargs)


_METHODS: dict[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
    str: SHRINKING_METHODS,
    Markup: SHRINKING_METHODS,
    LoopContext: frozenset({"cycle", "changed"}),
    Cycler: frozenset({"next", "reset"}),
}
_HARMLESS = (bool, int, str, list, dict)
_PAYING = (GrowingMethod, FormatMethod, MethodType)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # constants may be of any size
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters = priced_filters()
    environment.tests = priced_tests()  # type: ignore[assignment]
    environment.globals["raise_exception"] = _raise
    del environment.globals["lipsum"]
    return environment


ENVIRONMENT = _environment()
