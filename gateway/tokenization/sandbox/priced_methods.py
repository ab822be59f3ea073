"""Operators and methods of chat templates that pay for their work (`render_budget.py`)."""

import re
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Final

from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Namespace

from gateway.tokenization.sandbox.render_budget import CONTAINERS, SHORT, OverBudget, RenderContext

Priced = Callable[..., Any]

MAX_WIDTH: Final = 4096
"""Characters to which a text may be padded, and of a number's text."""
MAX_NUMBER_BITS: Final = 4096
CALL_UNITS: Final = 8
FORMAT_UNITS: Final = 40
FIELD_UNITS: Final = 8
STRFTIME_UNITS: Final = 40
_LONG_WIDTH: Final = re.compile(r"\d{4}")
_SUSPECT: Final = re.compile(r"\d{3}|\*")
_LONG_DIRECTIVE: Final = re.compile(r"%[-#0 +]{8}|%[-#0 +]{0,8}(?:\d{3}|\*|\d{0,2}\.(?:\d{3}|\*))")
"""Directives of `%` that pad to 100 characters or more, or may; repetitions are bounded, so that a search is
linear."""
PRODUCT_METHODS: Final = {"strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition"}
"""Methods that may compare each character of a text with each of the argument."""


def width_of(value: Any, most: int = MAX_WIDTH) -> Any:
    """Width that is not too large. Raises OverBudget."""
    if isinstance(value, int | float) and abs(value) > most:
        raise OverBudget(f"a width is over {most:,}")
    if isinstance(value, str) and len(value) > most:
        raise OverBudget(f"a filling is longer than {most:,} characters")
    return value


# --- operators ---


def bits_of(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def operated(context: RenderContext, operator: str, left: Any, right: Any, compute: Priced) -> Any:
    """Result of a binary operator but `+`. Raises OverBudget."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        bits = bits_of(left) + bits_of(right)
        if operator == "**" and isinstance(right, int):
            bits = bits_of(left) * abs(right)
        if bits > MAX_NUMBER_BITS:
            raise OverBudget("it computes with giant numbers")
        context.charge(4 + (bits >> 6))
    elif operator == "%" and isinstance(left, str):
        return formatted(context, left, right)
    elif operator == "*":
        _pay_for_copies(context, left, right)
    elif isinstance(left, CONTAINERS) or isinstance(right, CONTAINERS):
        raise OverBudget(f"it computes {operator} of lists")
    return compute(left, right)


def _pay_for_copies(context: RenderContext, left: Any, right: Any) -> None:
    for value, num in ((left, right), (right, left)):
        if isinstance(value, str) and isinstance(num, int):
            context.charge((len(value) * max(num, 0)) >> 5)
        elif isinstance(value, list | tuple) and isinstance(num, int):
            context.charge(len(value) * max(num, 0))
            context.multiply(num)


def formatted(context: RenderContext, text: str, values: Any) -> str:
    """Result of the operator `%` of a text."""
    if _SUSPECT.search(text) and ("%(" in text or _LONG_DIRECTIVE.search(text)):
        raise OverBudget("a format may have a large width")
    context.charge(8 + 4 * text.count("%") + (len(text) >> 4))
    for value in values if isinstance(values, tuple) else [values]:
        if isinstance(value, CONTAINERS):
            context.weigh(value)
            context.charge(len(context.text(value)) * text.count("%") >> 5)
        elif isinstance(value, str):
            context.charge(len(value) * text.count("%") >> 5)
    made: str = text % values
    return made


# --- methods ---


def charge_method(context: RenderContext, owner: Any, name: str, args: tuple[Any, ...]) -> None:
    """Pay for a method of a text, dict or list with a result that is no longer than it."""
    size = len(owner) if isinstance(owner, (str, *CONTAINERS)) else 0
    first = args[0] if args else None
    if type(owner) is str:
        other = len(first) if isinstance(first, str | tuple) else 1
        if name in PRODUCT_METHODS and other > 1:
            context.charge(size * min(other, size + 1) >> 4)
        elif name in ("split", "splitlines"):
            context.charge(owner.count(first) if isinstance(first, str) and first else size >> 1)
        context.charge((size >> 4) + (other >> 4))
    elif isinstance(owner, dict):
        context.key(first)
        context.charge(size if name == "copy" else 0)
    elif isinstance(owner, list | tuple):
        context.charge(size * context.weight(first))


def dated(context: RenderContext, strftime: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Text of the time: Python gives it 256 characters for each of the format at most."""
    for each in args[:1]:
        width_of(each, SHORT)
    text = strftime(*args, **kwargs)
    context.charge(STRFTIME_UNITS + (len(text) >> 4))
    return text


class GrowingMethod:
    """Method of a text with a result that may be longer than it."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def __repr__(self) -> str:
        return f"GrowingMethod({self.name!r})"

    def call(self, context: RenderContext, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Pay for the result, and make it. Raises what the method does, or OverBudget."""
        text, name = self.text, self.name
        context.charge(8 + (len(text) >> 4))
        if name == "replace":
            pay_for_replacing(context, text, args)
        elif name == "join" and len(args) == 1:
            items = list(context.counted(*args))
            context.charge(
                (sum(len(each) for each in items if isinstance(each, str)) + len(text) * len(items)) >> 5
            )
            return text.join(items)
        elif name == "expandtabs":
            for width in (*args, *kwargs.values()):
                context.charge(text.count("\t") * abs(width_of(width)) >> 5)
        else:
            for width in args[:1]:
                width_of(width)
                context.charge(width >> 4 if isinstance(width, int) and width > 0 else 0)
        return getattr(text, name)(*args, **kwargs)


def pay_for_replacing(context: RenderContext, text: str, args: tuple[Any, ...]) -> None:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        growth = len(args[1]) - len(args[0])
        num = text.count(args[0]) if growth > 0 and text else 0
        context.charge((len(text) + len(args[0]) + num * max(growth, 0)) >> 4)


class FormatMethod:
    """`str.format` of a text, or `str.format_map`: fields are looked up as the sandbox does."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def __repr__(self) -> str:
        return f"FormatMethod({self.name!r})"

    def call(self, context: RenderContext, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Format. Raises what the method does, or OverBudget."""
        context.charge(FORMAT_UNITS + (len(self.text) >> 1))
        if self.name == "format_map":
            if kwargs:
                raise TypeError("format_map() takes no keyword arguments")
            if len(args) != 1:
                raise TypeError(f"format_map() takes exactly one argument ({len(args)} given)")
            return _PricedFormatter(context).vformat(self.text, (), args[0])
        return _PricedFormatter(context).vformat(self.text, args, kwargs)


class _PricedFormatter(SandboxedFormatter):
    """Formatter that pays for each field."""

    def __init__(self, context: RenderContext) -> None:
        super().__init__(context.environment)
        self._context = context

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._pay(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        if _LONG_WIDTH.search(format_spec):
            raise OverBudget("a format has a large width")
        self._pay(value)
        return super().format_field(value, format_spec)

    def _pay(self, value: Any) -> None:
        self._context.charge(FIELD_UNITS)
        if isinstance(value, CONTAINERS):
            self._context.text(value)
        elif isinstance(value, str):
            self._context.charge(len(value) >> 4)


def called(context: RenderContext, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result of a method of jinja or of here, or of the types that make dicts."""
    context.charge(CALL_UNITS)
    if isinstance(function, MethodType):
        if isinstance(function.__self__, str):  # Markup
            context.charge(len(function.__self__) * (1 + len(args)) >> 2)
        context.weigh(args)
        return function(*args, **kwargs)
    if function is not dict and function is not Namespace:
        return function.call(context, args, kwargs)
    if len(args) == 1:
        items = list(args[0].items() if isinstance(args[0], dict) else context.counted(args[0]))
        context.charge(len(items))
        for item in items:
            context.key(item[0])
        context.multiply(len(items))
        return function(items, **kwargs)
    context.made(kwargs)
    return function(*args, **kwargs)
