"""Outline of a large JSON body: where its fields lie and how much they hold, found without a parser.

    {"model": "m", "messages": [{…}, {…}], "stream": true}
     └ field ────┘ └ field, items by their place┘ └ field ─────┘

A parser takes some hundred milliseconds for 60 MB of small values, in one call that keeps the interpreter
lock. The scan goes forward by windows of 64 KiB, counts, and ends at the first limit: a thread that scans
lets the event loop go on. Brackets are counted and not matched, and numbers are not read: errors inside of a
field are left to its decoder, or to the engine.

Never compiled (`setup.py`): machine code would keep the lock from the first window to the last.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.core.body_text import why_no_object, why_unreadable
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import InvalidRequest
from gateway.requests.field_types import LISTS, MAX_ITEMS, MESSAGES, too_many

WINDOW = 64 << 10
PIECE = 256 << 10
"""Window of a text, which is only searched for its end."""
MAX_VALUES = 1 << 20
"""Texts, names, objects and lists within one field, or within all."""
MAX_NUMBERS = 1 << 24
"""Token ids of a body: more than any context has."""
MAX_FIELDS = 4096

_TOKEN = re.compile(rb'"[^"\\]*+"|["{}\[\]]|[^"{}\[\]\s,:][^"{}\[\]]*+')
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NAME = re.compile(rb'\s{0,65536}("(?:[^"\\]|\\.){0,4096}")\s{0,65536}:\s{0,65536}', re.DOTALL)
_BARE = re.compile(rb"[-+.0-9A-Za-z]{0,64}+")
_LITERAL = re.compile(rb"[-+.0-9A-Za-z]{1,4096}")
_BEGIN, _NEXT = re.compile(rb"\s{0,65536}\{\s{0,65536}"), re.compile(rb"\s{0,65536}([,}])")
_END = re.compile(rb"\s{0,65536}")
_QUOTE, _OPENERS, _CLOSERS = b'"'[0], b"[{", b"]}"
_OF_IDS = b"0123456789, \t\r\n"
_SOME_BACKSLASHES = 64
_PART_DEPTH = 3
"""messages[ message{ content[ part."""

_decode_text = msgspec.json.Decoder(str).decode


@dataclass(slots=True)
class Field:
    """A field of the top level and its value's place. Counts are of a list's or object's values: `num_ids`
    of numbers, `num_values` of all others. `items` are the places of the messages, `bare_item` is the number
    of the first one that is neither object nor list."""

    name: str
    key: bytes
    start: int
    end: int = 0
    num_items: int = 0
    num_values: int = 0
    num_ids: int = 0
    items: list[tuple[int, int]] = field(default_factory=list)
    bare_item: int | None = None

    @property
    def has_bare_items(self) -> bool:
        return self.bare_item is not None

    @property
    def size(self) -> int:
        return self.end - self.start


class Outline:
    """Fields in the order of the body, repeated names too. Raises InvalidRequest for a body that is no JSON
    object, or holds more than the limits."""

    def __init__(self, body: bytes) -> None:
        self.fields: list[Field] = []
        self.num_values = self.num_ids = 0
        self._body = body
        self._scan()

    def __repr__(self) -> str:
        return f"Outline({len(self.fields)} fields, {self.num_values} values, {self.num_ids} ids)"

    @property
    def last(self) -> Mapping[str, Field]:
        """Fields by name; the last one counts where a name is repeated, as for all parsers of engines."""
        return {each.name: each for each in self.fields}

    def _scan(self) -> None:
        body = self._body
        begin = _BEGIN.match(body)
        if begin is None:
            raise _invalid(why_no_object(body) or "expected an object at byte 0")
        at, separator = begin.end(), b","
        if body[at : at + 1] == b"}":
            at, separator = at + 1, b"}"
        while separator == b",":
            at = self._field(at)
            found = _NEXT.match(body, at)
            if found is None:
                raise _invalid(f"expected ',' or '}}' at byte {at}")
            at, separator = found.end(), found[1]
        if (rest := _END.match(body, at)) is None or rest.end() != len(body):
            raise _invalid(f"trailing characters at byte {at}")

    def _field(self, at: int) -> int:
        name = _NAME.match(self._body, at)
        if name is None:
            raise _invalid(f"expected a name at byte {at}")
        try:
            each = Field(_decode_text(name[1]), name[1], name.end())
        except UNREADABLE as exc:
            raise _invalid(why_unreadable(exc, name[1], name.start(1))) from exc
        self.fields.append(each)
        if len(self.fields) > MAX_FIELDS:
            raise InvalidRequest(f"the body has more than {MAX_FIELDS:,} fields; send fewer")
        each.end = self._value_end(each)
        self.num_values += each.num_values
        self.num_ids += each.num_ids
        return each.end

    def _value_end(self, each: Field) -> int:
        body, at = self._body, each.start
        first = body[at : at + 1]
        if first == b'"':
            return self._text_end(at + 1)
        if first and first in (b"[", b"{"):
            return self._nested_end(each)
        literal = _LITERAL.match(body, at)
        if literal is None:
            raise _invalid(f"expected a value at byte {at}")
        return literal.end()

    def _text_end(self, at: int) -> int:
        """The place behind the quote that ends the text in which `at` lies, at no escape's inside."""
        body, size, begin = self._body, len(self._body), at - 1
        while at < size - 1 or body[at : at + 1] == b'"':
            end = min(at + PIECE, size)
            quote = body.find(b'"', at, end)
            if quote < 0:
                at = end + _is_escaped(body, at, end)
            elif not _is_escaped(body, at, quote):
                return quote + 1
            else:
                found = _TEXT.match(body, at, min(at + WINDOW, size))
                at = found.end() if found else size
        raise _invalid(f"the string at byte {begin} is not closed")

    def _nested_end(self, each: Field) -> int:
        """The place behind the bracket that closes the field's first one."""
        body, walk = self._body, _Walk(each, self._body)
        at, size = each.start, len(body)
        while at < size:
            end = min(at + WINDOW, size)
            if (bare := _BARE.match(body, end)) is not None:
                end = bare.end()  # not within a number
            at = walk.go(at, end)
            self._check(each)
            if walk.is_closed:
                return at
            if walk.is_in_text:
                at = self._text_end(at)
        raise _invalid(f"'{each.name}' at byte {each.start} is not closed")

    def _check(self, each: Field) -> None:
        if (
            each.name in LISTS
            and each.num_items > MAX_ITEMS
            and self._body[each.start : each.start + 1] == b"["
        ):
            raise too_many(each.name)
        if self.num_values + each.num_values > MAX_VALUES:
            raise InvalidRequest(f"'{each.name}' holds more than {MAX_VALUES:,} values", param=each.name)
        if self.num_ids + each.num_ids > MAX_NUMBERS:
            raise InvalidRequest(f"'{each.name}' holds more than {MAX_NUMBERS:,} numbers", param=each.name)


class _Walk:
    """The brackets, texts and numbers of one field, window by window."""

    def __init__(self, each: Field, body: bytes) -> None:
        self.is_closed = self.is_in_text = False
        self._each, self._body = each, body
        self._depth = self._num_parts = self._begin = 0
        self._is_messages = each.name == MESSAGES

    def go(self, at: int, end: int) -> int:
        """To the end of the window, of the field, or behind the quote that begins a long text."""
        body, each, depth = self._body, self._each, self._depth
        self.is_in_text = False
        for token in _TOKEN.finditer(body, at, end):
            start, stop = token.span()
            byte = body[start]
            if byte == _QUOTE:
                each.num_values += 1
                self._see_item(depth, 1)
                if stop - start == 1:
                    self.is_in_text, self._depth = True, depth
                    return stop
            elif byte in _OPENERS:
                each.num_values += 1
                self._open(depth, start)
                depth += 1
            elif byte in _CLOSERS:
                depth -= 1
                if depth == 1 and self._is_messages:
                    each.items.append((self._begin, stop))
                elif depth == 0:
                    self.is_closed = True
                    return stop
            else:
                self._see_run(depth, start, stop)
        self._depth = depth
        return end

    def _open(self, depth: int, start: int) -> None:
        if depth == 1:
            self._each.num_items += 1
            self._begin, self._num_parts = start, 0
        elif depth == _PART_DEPTH and self._is_messages:
            self._see_item(depth, 1)

    def _see_item(self, depth: int, num: int) -> None:
        if depth == 1:
            self._see_bare()
            self._each.num_items += num
        elif depth == _PART_DEPTH and self._is_messages:
            self._num_parts += num
            if self._num_parts > MAX_ITEMS:
                raise too_many(f"messages[{self._each.num_items - 1}].content")

    def _see_run(self, depth: int, start: int, stop: int) -> None:
        """Numbers and other bare words, with the commas between and behind them."""
        each, run = self._each, self._body[start:stop]
        num = run.count(b",") + (not run.rstrip().endswith(b","))
        if run.translate(None, _OF_IDS):
            each.num_values += num
            self._see_item(depth, num)
        else:
            each.num_ids += num
            if depth == 1:
                self._see_bare()

    def _see_bare(self) -> None:
        if self._each.bare_item is None:
            self._each.bare_item = self._each.num_items


def _is_escaped(body: bytes, start: int, end: int) -> bool:
    """True if an odd number of backslashes stands before `end`; at `start` no escape is open."""
    tail = body[max(start, end - _SOME_BACKSLASHES) : end]
    if len(tail) == _SOME_BACKSLASHES and not tail.rstrip(b"\\"):
        tail = body[start:end]
    return (len(tail) - len(tail.rstrip(b"\\"))) % 2 == 1


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {why}")
