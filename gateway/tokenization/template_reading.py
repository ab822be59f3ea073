"""Reading of a chat template's syntax tree: what it looks for in messages, which numbers it compares, whether
it compares whole messages, and which dates it prints. Pure; nothing is rendered here.

    markup_of           words in texts, and numbers, for which `probe_conversations` makes probes
    compares_messages   such a template is never cut
    dates_of            the parts of the day on which a setting depends, or the reason why it is unknown
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from jinja2 import nodes

from gateway.tokenization.chat_template import Template

#  String methods by which a template reads a message's text.
READING = {"startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit"}
READING |= {"partition", "rpartition", "replace", "removeprefix", "removesuffix"}
#  Methods and filters that change the case of letters.
FOLDING: Final = {"lower", "upper", "title", "capitalize", "casefold", "swapcase"}
KEYS: Final = {"role", "content", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name"} | {
    *("function", "arguments", "parameters", "id", "type")
}
"""Words that templates ask for in messages and calls, rather than in texts."""
SIFTING: Final = {
    "list",
    "reverse",
    "sort",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "unique",
    "default",
}
"""Filters that make another list of the same messages."""
TEXTS: Final = {"content", "text", "reasoning", "reasoning_content"}
#  A word of a template that is neither markup nor looked for may stand in any message.
MARKUP_CHARACTERS: Final = re.compile(r"[<>|{}\[\]]|[^\x00-\x7f]")
MAX_MARKUP_CHARS: Final = 60
#  Pairs of them are tried in the assistant's text; of more than these, none is allowed there.
MAX_TRIED_MARKUP: Final = 6
MAX_NUMBER: Final = 4096
"""Largest number of a template for which there are probes: a count of messages, or a length of a text."""
MAX_NUMBERS: Final = 4
#  Templates that print the hour cannot be cut: directives for the day or less.
DAY_ONLY: Final = re.compile(r"(?:[^%]|%[-_]?[aAwdebBhmCyYjUuVGgWFDx%])*")
CLOCK: Final = "strftime_now"


@dataclass(frozen=True, slots=True)
class Markup:
    """Texts and numbers of a template. A conversation is not cut if a message has one of `all` in its text,
    or is one of `exact`; except the assistant's, which may have one of `tried`. `folds`: the template changes
    the case of texts, so that the case of a word does not matter. `numbers`: its largest ones."""

    all: tuple[str, ...]
    tried: tuple[str, ...]
    exact: frozenset[str] = frozenset()
    folds: bool = False
    numbers: tuple[int, ...] = ()


def markup_of(template: Template) -> Markup:
    """Texts that the template looks for in messages, and its own texts that a message may imitate."""
    tree = template.tree
    looked_for = {text.strip() for text in _looked_for(tree)} - {""}
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    exact = frozenset(text.strip() for text in constants if len(text) <= MAX_MARKUP_CHARS)
    constants += [node.data for node in tree.find_all(nodes.TemplateData)]
    stripped = {text.strip() for text in constants}
    printed = {text for text in stripped if 3 <= len(text) <= MAX_MARKUP_CHARS}
    printed = {text for text in printed if MARKUP_CHARACTERS.search(text)}
    folds = bool(looked_for) and _folds(tree)
    tried = tuple(sorted(looked_for)) if len(looked_for) <= MAX_TRIED_MARKUP and not folds else ()
    every = looked_for | printed
    if folds:
        every = {text.casefold() for text in every}
    return Markup(tuple(sorted(every)), tried, exact - {""}, folds, _numbers(tree))


def _looked_for(tree: nodes.Template) -> Iterator[str]:
    """Constants that are compared with parts of a text, written in place or behind a name. Whole texts, as
    roles and types, are compared by ==."""
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in READING:
            yield from _strings(tree, call.args)
    for compare in tree.find_all(nodes.Compare):
        for operand in compare.ops:
            if operand.op in ("in", "notin") and not isinstance(operand.expr, nodes.List | nodes.Tuple):
                yield from _strings(tree, [compare.expr])
            elif _is_slice(compare.expr) or _is_slice(operand.expr):
                yield from _strings(tree, [compare.expr, operand.expr])
    for each in tree.find_all(nodes.Filter):
        if each.name in ("replace", "split"):
            yield from _strings(tree, each.args)


def _is_slice(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getitem) and not (
        isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str)
    )


def _strings(tree: nodes.Template, found: Iterable[nodes.Node]) -> Iterator[str]:
    for node in found:
        for text in _texts(node, tree):
            if text not in KEYS:  # asked of messages, not texts
                yield text


def _texts(node: nodes.Node, tree: nodes.Template, *, is_named: bool = False) -> Iterator[str]:
    """Constant texts that an operand may be: itself, or all that are in what its name is assigned."""
    if isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, nodes.Add | nodes.Concat):
        if (text := _sum(node)) is not None:
            yield text
    elif isinstance(node, nodes.Name) and not is_named:
        for value in _values_of(tree, node.name):
            for each in [value, *value.find_all((nodes.Const, nodes.Add, nodes.Concat))]:
                yield from _texts(each, tree, is_named=True)


def _sum(node: nodes.Node) -> str | None:
    """Text that a sum of constant texts makes; None for other expressions."""
    if isinstance(node, nodes.Const):
        return node.value if isinstance(node.value, str) else None
    parts = node.nodes if isinstance(node, nodes.Concat) else []
    if isinstance(node, nodes.Add):
        parts = [node.left, node.right]
    texts = [_sum(part) for part in parts]
    return "".join(text or "" for text in texts) if texts and None not in texts else None


def _values_of(tree: nodes.Template, name: str) -> Iterator[nodes.Node]:
    """Expressions that a name stands for: assigned, looped over, or given for a macro's parameter."""
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and assign.target.name == name:
            yield assign.node
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and loop.target.name == name:
            yield loop.iter
    for macro in tree.find_all(nodes.Macro):
        if any(arg.name == name for arg in macro.args):
            yield from macro.defaults
            for call in tree.find_all(nodes.Call):
                if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
                    yield from call.args
                    yield from (each.value for each in call.kwargs)


def _folds(tree: nodes.Template) -> bool:
    """True if the template changes the case of messages' texts."""
    changed = [each.node for each in tree.find_all(nodes.Filter) if each.name in FOLDING]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in FOLDING:
            changed.append(call.node.node)
    named = [value for node in changed for name in _names(node) for value in _values_of(tree, name.name)]
    return any(_reads_text(node) for node in [*changed, *named])


def _reads_text(node: nodes.Node | None) -> bool:
    """True if a message's text, or what is named so, is in an expression."""
    if node is None:
        return False
    parts = [node, *node.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))]
    return any(_key_of(each) in TEXTS or _name(each) in TEXTS for each in parts)


def _key_of(node: nodes.Node | None) -> object:
    """Key that is read last: "role" of `message.role` and of `message['role']`."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) else None


def _numbers(tree: nodes.Template) -> tuple[int, ...]:
    """Largest numbers of the template: it may count messages, or letters, up to them."""
    values = [node.value for node in tree.find_all(nodes.Const)]
    found = {abs(value) for value in values if type(value) is int and 1 < abs(value) <= MAX_NUMBER}
    return tuple(sorted(found)[-MAX_NUMBERS:])


# --- messages that are compared ---


def compares_messages(template: Template) -> bool:
    """True if the template compares whole messages, as `message == asked[-1]`: then an earlier message may
    change with an equal one that follows, and no conversation can be cut."""
    messages = _Messages(template.tree)
    for compare in template.tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(isinstance(side, nodes.Const | nodes.List | nodes.Tuple) for side in sides):
            continue
        is_sought = any(each.op in ("in", "notin") and messages.are(each.expr) for each in compare.ops)
        if is_sought or any(messages.is_one(side) for side in sides):
            return True
    return False


class _Messages:
    """Names of a template that stand for a list of messages, or for one of them."""

    def __init__(self, tree: nodes.Template) -> None:
        self._lists, self._ones = {"messages"}, set[str]()
        before = -1
        while before != (before := len(self._lists) + len(self._ones)):
            self._follow(tree)

    def _follow(self, tree: nodes.Template) -> None:
        for loop in tree.find_all(nodes.For):
            if self.are(loop.iter):
                self._ones |= {name.name for name in _names(loop.target)}
        for assign in tree.find_all(nodes.Assign):
            target = assign.target
            name = f"{target.name}.{target.attr}" if isinstance(target, nodes.NSRef) else _name(target)
            if self.are(assign.node):
                self._lists.add(name)
            if self.is_one(assign.node):
                self._ones.add(name)

    def are(self, node: nodes.Node | None) -> bool:
        """True for an expression that may be a list of messages."""
        if isinstance(node, nodes.CondExpr):
            return self.are(node.expr1) or self.are(node.expr2)
        if isinstance(node, nodes.Add | nodes.And | nodes.Or):
            return self.are(node.left) or self.are(node.right)
        if isinstance(node, nodes.Filter):
            return node.name in SIFTING and self.are(node.node)
        if isinstance(node, nodes.List | nodes.Tuple):
            return any(self.is_one(item) or self.are(item) for item in node.items)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self.are(node.node)
        return _name(node) in self._lists

    def is_one(self, node: nodes.Node | None) -> bool:
        """True for an expression that may be a message."""
        if isinstance(node, nodes.CondExpr):
            return self.is_one(node.expr1) or self.is_one(node.expr2)
        if isinstance(node, nodes.And | nodes.Or):
            return self.is_one(node.left) or self.is_one(node.right)
        if isinstance(node, nodes.Filter):
            return node.name in ("first", "last", "random") and self.are(node.node)
        if isinstance(node, nodes.Getitem):
            return _key_of(node) not in KEYS and not isinstance(node.arg, nodes.Slice) and self.are(node.node)
        name = _name(node)
        return name in self._ones or name in ("loop.previtem", "loop.nextitem")


def _name(node: nodes.Node | None) -> str:
    """Name of a variable, or of an attribute of one; empty for other expressions."""
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) else ""


def _names(node: nodes.Node | None) -> Iterator[nodes.Name]:
    if node is None:
        return
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


# --- dates ---


@dataclass(frozen=True, slots=True)
class Dates:
    """Formats of the dates that a template prints; or the reason `why` they are unknown, or too fine."""

    formats: tuple[str, ...]
    why: str = ""

    def of(self, now: datetime) -> tuple[str, ...]:
        return tuple(now.strftime(text) for text in self.formats)


def dates_of(template: Template) -> Dates:
    """Dates that the template prints. It may ask whether the clock is there: here it always is."""
    tree = template.tree
    asked = {id(name) for name in _asked(tree) if isinstance(name, nodes.Name)}
    names = [node for node in tree.find_all(nodes.Name) if node.name == CLOCK and id(node) not in asked]
    calls = [call for call in tree.find_all(nodes.Call) if any(call.node is name for name in names)]
    formats: list[str] = []
    for call in calls:
        given = [*call.args, *(each.value for each in call.kwargs)]
        texts = [*_texts(given[0], tree)] if len(given) == 1 else []
        if not texts or not _is_fixed(given[0], tree):
            return Dates((), "the template prints an unknown part of the time")
        formats += texts
    if len(calls) != len(names):
        return Dates((), "the template uses the clock otherwise than by calling it with a format")
    for text in formats:
        if not DAY_ONLY.fullmatch(text):
            return Dates((), f"the template prints more of the time than the day ({text[:40]!r})")
    return Dates(tuple(formats))


def _asked(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Expressions that are only asked whether they are there, or true."""
    todo: list[nodes.Node | None] = [each.test for each in tree.find_all(nodes.If)]
    todo += [each.test for each in tree.find_all(nodes.CondExpr)]
    todo += [each.node for each in tree.find_all(nodes.Test)]
    while todo:
        node = todo.pop()
        if isinstance(node, nodes.And | nodes.Or):
            todo += [node.left, node.right]
        elif isinstance(node, nodes.Not):
            todo.append(node.node)
        elif node is not None:
            yield node


def _is_fixed(node: nodes.Node, tree: nodes.Template) -> bool:
    """True for a constant, and for a name that is only ever assigned constants."""
    if isinstance(node, nodes.Name):
        values = [*_values_of(tree, node.name)]
        is_given = any(arg.name == node.name for macro in tree.find_all(nodes.Macro) for arg in macro.args)
        return bool(values) and not is_given and all(isinstance(value, nodes.Const) for value in values)
    return _sum(node) is not None
