"""Filters and tests of chat templates that pay for their work (`render_budget.py`).

Those of jinja that are not here are not rendered: they print addresses, draw lots, or search texts by
expressions that may take for ever (`striptags`, `urlize`, `wordwrap`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2 import filters, tests
from jinja2.exceptions import FilterArgumentError
from jinja2.runtime import Undefined
from jinja2.utils import _PassArg, pass_context
from markupsafe import soft_str

from gateway.tokenization.sandbox.priced_methods import (
    MAX_WIDTH,
    charge_method,
    formatted,
    pay_for_replacing,
    width_of,
)
from gateway.tokenization.sandbox.render_budget import CONTAINERS, SHORT, OverBudget, RenderContext

MAX_INDENT: Final = 16
TOJSON_UNITS: Final = 16
TOJSON_ODD_UNITS: Final = 64
"""Units of `tojson` with options: an encoder is made for them."""

Priced = Callable[..., Any]

# --- filters ---


_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


def _tojson(
    context: RenderContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    context.weigh_made(value)
    if indent is not None:
        width_of(indent, MAX_INDENT)
    if separators is not None:
        for each in separators:
            width_of(each, MAX_INDENT)
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        text = _encode(value)
        context.charge(TOJSON_UNITS)
    else:
        context.charge(TOJSON_ODD_UNITS)
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
    if len(text) > SHORT:
        context.charge(len(text) >> 4)
    return text


def _replace(context: RenderContext, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = context.text(value), context.text(old), context.text(new)
    pay_for_replacing(context, text, (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _join(context: RenderContext, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = context.counted(value)
    if attribute is not None:
        items = map(filters.make_attrgetter(context.environment, _short(attribute)), items)
    between = context.text(d)
    texts = [context.text(each) for each in items]
    context.charge((sum(map(len, texts)) + len(between) * len(texts)) >> 5)
    return between.join(texts)


def _short(attribute: Any) -> Any:
    return width_of(attribute, SHORT) if isinstance(attribute, str) else attribute


def _format(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return formatted(context, context.text(value), kwargs or args)


def _int(context: RenderContext, value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        raise OverBudget("it reads a giant number")
    return filters.do_int(value, default, base)


def _round(context: RenderContext, value: Any, precision: Any = 0, method: Any = "common") -> Any:
    return filters.do_round(value, width_of(precision, SHORT), method)


def _indent(context: RenderContext, s: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    width_of(width)
    num = len(width) if isinstance(width, str) else abs(width)
    context.charge((len(s) + (s.count("\n") + 1) * num) >> 4)
    return filters.do_indent(s, width, first, blank)


def _trim(context: RenderContext, value: Any, chars: str | None = None) -> str:
    if type(value) is not str:
        value = _string(context, value)
    if chars is not None:
        charge_method(context, str(value), "strip", (chars,))
    elif len(value) > SHORT:
        context.charge(len(value) >> 4)
    text: str = value.strip(chars)
    return text


def _batch(context: RenderContext, value: Any, linecount: int, fill_with: Any = None) -> Any:
    context.multiply(linecount if fill_with is not None else 1)
    context.charge(max(0, linecount))
    return filters.do_batch(context.counted(value), linecount, fill_with)


def _slice(context: RenderContext, value: Any, slices: int, fill_with: Any = None) -> Any:
    context.multiply(slices if fill_with is not None else 1)
    context.charge(max(0, slices) * 4)
    return filters.sync_do_slice(context.counted(value), slices, fill_with)


def _sum(context: RenderContext, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise OverBudget("it sums up lists")
    return filters.sync_do_sum(context.environment, context.counted(value), _short(attribute), start)


def _string(context: RenderContext, value: Any) -> str:
    return context.text(value) if isinstance(value, CONTAINERS) else soft_str(value)


def _first(context: RenderContext, value: Any) -> Any:
    return filters.sync_do_first(context.environment, value)


def _ordered(name: str) -> Priced:
    """Filter that compares values: each with some others, in full."""
    call = _unpriced(filters.FILTERS[name])

    def priced(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = list(context.counted(value)) if not isinstance(value, str | Mapping | Undefined) else value
        context.multiply(2 if name == "groupby" else 1)
        cost = context.weight(value)
        context.charge(cost * cost.bit_length())
        _check_attribute(args, kwargs)
        return call(context, value, *args, **kwargs)

    return priced


def _check_attribute(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for each in (*args, *kwargs.values()):
        _short(each)


def _each(name: str) -> Priced:
    """Filter that looks at each item of a value once."""
    call = _unpriced(filters.FILTERS[name])

    def priced(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(value, Undefined):
            value = context.counted(value)
        return call(context, value, *args, **kwargs)

    return priced


def _of_text(name: str, units: int = 4) -> Priced:
    """Filter of a text with a result that is about as long; `units` are for 16 characters."""
    call = _unpriced(filters.FILTERS[name])

    def priced(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, CONTAINERS):
            value = context.text(value)
        if isinstance(value, str):
            context.charge(len(value) * units >> 4)
        _check_attribute(args, kwargs)
        return call(context, value, *args, **kwargs)

    return priced


def _unpriced(function: Priced) -> Priced:
    """jinja's own filter or test, called with a context whatever it wants of that."""
    wanted = _PassArg.from_obj(function)
    if wanted is _PassArg.context:
        return function
    if wanted is _PassArg.eval_context:
        return lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs)
    if wanted is _PassArg.environment:
        return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)
    return lambda context, *args, **kwargs: function(*args, **kwargs)


_EACH = ("list", "map", "select", "reject", "selectattr", "rejectattr", "items", "last", "reverse")
_ORDERED = ("sort", "unique", "groupby", "dictsort", "min", "max")
_TEXTS: tuple[str, ...] = ("lower", "upper", "capitalize", "truncate", "wordcount", "float")
_TEXTS += ("safe", "e", "escape", "forceescape")
_CHEAP = ("abs", "d", "default", "length", "count")
_OWN: dict[str, Priced] = {
    **{"tojson": _tojson, "replace": _replace, "join": _join, "format": _format, "int": _int, "sum": _sum},
    **{"round": _round, "indent": _indent, "trim": _trim, "batch": _batch, "slice": _slice},
    **{"string": _string, "first": _first},
}


def priced_filters() -> dict[str, Priced]:
    """Filters by name."""
    made = {name: _each(name) for name in _EACH} | {name: _ordered(name) for name in _ORDERED}
    made |= {name: _of_text(name) for name in _TEXTS} | _OWN
    made["title"] = _of_text("title", 32)
    priced = {name: pass_context(function) for name, function in made.items()}
    return priced | {name: filters.FILTERS[name] for name in _CHEAP}


# --- tests ---


def _compared(name: str) -> Priced:
    call: Priced = tests.TESTS[name]  # type: ignore[assignment]

    def priced(context: RenderContext, value: Any, other: Any) -> bool:
        return bool(call(context.weighed(value), other))

    return priced


def _divided(name: str) -> Priced:
    call: Priced = tests.TESTS[name]  # type: ignore[assignment]

    def priced(context: RenderContext, value: Any, *args: Any) -> bool:
        if isinstance(value, str):
            raise TypeError(f"{name} of a text")
        return bool(call(value, *args))

    return priced


def _cased(name: str) -> Priced:
    call: Priced = tests.TESTS[name]  # type: ignore[assignment]

    def priced(context: RenderContext, value: Any) -> bool:
        text = context.text(value)
        context.charge(len(text) >> 4)
        return bool(call(text))

    return priced


def _in(context: RenderContext, value: Any, where: Any) -> bool:
    return context.contains(value, where)


_COMPARING: tuple[str, ...] = ("==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge")
_COMPARING += ("<", "lt", "lessthan", "<=", "le")


def priced_tests() -> dict[str, Priced]:
    """Tests by name."""
    made: dict[str, Priced] = {name: _compared(name) for name in _COMPARING}
    made |= {name: _divided(name) for name in ("odd", "even", "divisibleby")}
    made |= {name: _cased(name) for name in ("lower", "upper")} | {"in": _in}
    found: dict[str, Any] = dict(tests.TESTS)
    return found | {name: pass_context(function) for name, function in made.items()}
