"""Budget of one rendering of a chat template, in units of 0.02 to 0.15 us.

Code that `budgeted_code.py` generates pays for each run of a loop's body or a macro, by the nodes of its
syntax tree; operators, methods and filters pay for the sizes of their values before they make them. A
rendering starts with BASE_UNITS. Where these are used up, its input is measured, once, and `allowance` adds
what honest templates may need for it: a walk of all values per node, and comparing each message with each
other.
"""

import threading
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace

BASE_UNITS: Final = 10_000
"""Units that each rendering has: some 1 ms at most."""
PROBE_UNITS: Final = 16_000
"""Units of a probe: 20 messages of the costliest templates in use need 15,000."""
MAX_INLINE_UNITS: Final = 50_000
"""Units beside those for characters of a rendering on the event loop: some 5 ms at most, and what needs more
is rendered in a thread."""
MAX_UNITS: Final = 1_000_000
"""Units beside those for characters of any rendering: some 0.1 s of a thread."""
CHAR_UNITS: Final = 1
"""Units for each character of the input: templates look through a text sixteen times at most, at
1 unit for 16 characters."""
NUM_WALKS: Final = 2
MAX_WALKED_NODES: Final = 2000
MAX_LETTER_NODES: Final = 50
"""Nodes that may run for each character: some templates loop over a text, and print its letters."""
MESSAGE_PAIR_UNITS: Final = 32
LAZY_UNITS: Final = 100
"""Units of an iterator over another one: a chain of them is as deep a recursion."""
VALUE_UNITS: Final = 2
"""Units of a look at a value in a container."""
MAX_SPREAD: Final = 16
"""Places of a value up to which its container is printed without looking at it before."""
SHORT: Final = 128
"""Length of a text or dict below which work on it is free: it costs no more than its node."""

_EMPTY: dict[str, str] = {}
KEYS: Final = type(_EMPTY.keys())
VALUES: Final = type(_EMPTY.values())
ITEMS: Final = type(_EMPTY.items())
CONTAINERS: Final = (dict, list, tuple, KEYS, VALUES, ITEMS, Namespace)
_SIZED: Final = (str, range, dict, list, tuple, KEYS, VALUES, ITEMS)
_SCALARS: Final = frozenset({str, int, float, bool, type(None), Undefined})
_NO_KEYS: set[str] = set()
_threads = threading.local()


class OverBudget(Exception):
    """A rendering costs more than it may. `is_fault`: more than any honest template may need for such input.
    `is_inline`: a thread may take longer."""

    def __init__(self, reason: str, *, is_fault: bool = True, is_inline: bool = False) -> None:
        super().__init__(reason)
        self.is_fault, self.is_inline = is_fault, is_inline


def hurry(is_hurried: bool) -> None:
    """Set whether renderings of this thread end after MAX_INLINE_UNITS: while it runs an event loop."""
    _threads.is_hurried = is_hurried


def is_hurried() -> bool:
    """True on a thread that runs an event loop."""
    return bool(getattr(_threads, "is_hurried", False))


def probe(is_probe: bool) -> None:
    """Set whether renderings of this thread are probes, which have PROBE_UNITS and no more."""
    _threads.is_probe = is_probe


def allowance(num_messages: int, num_values: int, num_chars: int, num_nodes: int) -> tuple[int, int]:
    """Units for a rendering of an input: those for its structure, and those for its characters."""
    walks = NUM_WALKS * min(num_nodes, MAX_WALKED_NODES) * (num_values + 1)
    letters = min(num_nodes, MAX_LETTER_NODES) * num_chars
    return BASE_UNITS + walks + letters + MESSAGE_PAIR_UNITS * num_messages**2, CHAR_UNITS * num_chars


def measured(value: object, most: int) -> tuple[int, int]:
    """Values and characters in a value, each as often as it is reached; stops after `most` values."""
    num, chars, todo = 0, 0, [value]
    while todo and num < most:
        each = todo.pop()
        num += 1
        if type(each) is str:
            chars += len(each)
        elif isinstance(each, Namespace):
            todo.append(each._Namespace__attrs)
        elif isinstance(each, dict):
            todo += each.keys()
            todo += each.values()
        elif isinstance(each, CONTAINERS):
            todo += each
    return num, chars


class RenderContext(Context):
    """Context of a template's variables, and the units that are `left` for the rendering.

    It is without jinja's support for imported or extended templates: chat templates stand alone, and it costs
    as much as rendering a short prompt. `spread`: in how many places a value of the input may be, in a
    container that the template has made.
    """

    left = BASE_UNITS
    num_nodes = 0
    spread = 1
    _granted = BASE_UNITS
    _is_extended = False

    def __init__(
        self, environment: Any, parent: dict[str, Any], name: str | None, blocks: Any, globals: Any = None
    ) -> None:
        self.environment, self.name = environment, name
        self.parent, self.vars = parent, {}
        self.eval_ctx = nodes.EvalContext(environment, name)
        self.exported_vars, self.globals_keys = set(), _NO_KEYS
        self.blocks = {block: [body] for block, body in blocks.items()} if blocks else {}

    def charge(self, units: int) -> None:
        """Pay for work. Raises OverBudget."""
        self.left -= units
        if self.left < 0:
            self.refill()

    def refill(self) -> None:
        """Add the allowance for the input once, of which BASE_UNITS are used. Raises OverBudget where that is
        not enough."""
        if self._is_extended:
            self.exceed()
        self._is_extended = True
        if getattr(_threads, "is_probe", False):
            self._extend_probe()
            return
        messages = self.parent.get("messages", ())
        num, chars = measured([value for key, value in self.parent.items() if not callable(value)], MAX_UNITS)
        units, more = allowance(len(messages), num, chars, self.num_nodes)
        most = MAX_INLINE_UNITS if is_hurried() else MAX_UNITS
        self._is_fault, self._is_inline = units <= most, most == MAX_INLINE_UNITS
        self._grant(min(units, most) + more - BASE_UNITS)
        if self.left < 0:
            self.exceed()

    def _grant(self, units: int) -> None:
        self.left += units
        self._granted += units

    @property
    def num_units(self) -> int:
        """Units that were used."""
        return self._granted - self.left

    def _extend_probe(self) -> None:
        self._is_fault, self._is_inline = False, False
        self._grant(PROBE_UNITS - BASE_UNITS)
        if self.left < 0:
            self.exceed()

    def exceed(self) -> NoReturn:
        if self._is_fault:
            raise OverBudget("it takes more time or memory than a template may")
        raise OverBudget("the prompt has too many values", is_fault=False, is_inline=self._is_inline)

    # texts -------------------------------------------------------------------------------------

    def text(self, value: object) -> str:
        """Text of a value, as `str` makes it, paid to be printed."""
        if type(value) is str:
            if len(value) > SHORT:
                self.charge(len(value) >> 5)
            return value
        return self.text_of(value)

    def text_of(self, value: object) -> str:
        if isinstance(value, CONTAINERS):
            self.weigh_made(value)
        text = str(value)
        if len(text) > SHORT:
            self.charge(len(text) >> 4)
        return text

    def paid(self, text: Any) -> Any:
        """Text that is a sum with at most twice the length of what was paid before."""
        if len(text) > SHORT:
            self.charge(len(text) >> 5)
        return text

    def weigh_made(self, value: object) -> None:
        """Pay for all values of a container, if they may be many times those of the input."""
        if self.spread > MAX_SPREAD or isinstance(value, Namespace):
            self.weigh(value)

    def multiply(self, num: int) -> None:
        """Note that a value may be in `num` times as many places."""
        if self.spread <= MAX_SPREAD:
            self.spread *= max(1, num)

    def weigh(self, value: object) -> None:
        """Pay for all values and characters in a value."""
        self.charge(self.weight(value))

    def weight(self, value: object) -> int:
        """Units of a look at all values and characters in a value. Raises OverBudget where they are more than
        are left."""
        for _ in range(2):
            num, chars = measured(value, self.left // VALUE_UNITS + 1)
            if VALUE_UNITS * num <= self.left:
                break
            self.refill()
        return VALUE_UNITS * num + (chars >> 6)

    def joined(self, *parts: object) -> str:
        """Result of the operator `~`."""
        return "".join([self.text(part) for part in parts])

    def added(self, first: Any, second: Any) -> Any:
        """Result of `+`."""
        if isinstance(first, str) and isinstance(second, str):
            self.charge((len(first) + len(second)) >> 5)
        elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
            self.charge(len(first) + len(second))
            self.multiply(2)
        return first + second

    # values ------------------------------------------------------------------------------------

    def made(self, value: Any) -> Any:
        """Note a list, tuple or dict of the template that may hold containers."""
        num = 0
        for each in value.values() if type(value) is dict else value:
            num += MAX_SPREAD + 1 if type(each) is Namespace else type(each) not in _SCALARS
        if num > 1:
            self.multiply(num)
        return value

    def key(self, value: Any) -> Any:
        """Key of a dict. Raises OverBudget for a tuple: its hash takes as long as all that is in it."""
        if isinstance(value, tuple):
            raise OverBudget("it looks up a tuple")
        return value

    def weighed(self, value: Any) -> Any:
        """Side of a comparison: comparing costs at most all that is in it."""
        if type(value) is str:
            if len(value) > SHORT:
                self.charge(len(value) >> 6)
        elif isinstance(value, CONTAINERS):
            self.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """Right side of an `in` with a short constant to its left."""
        if type(value) is dict:
            return value
        if type(value) is str:
            if len(value) > SHORT:
                self.charge(len(value) >> 6)
            return value
        return value if isinstance(value, (dict, KEYS)) else self.counted(value, 1)

    def contains(self, item: Any, value: Any) -> bool:
        """Result of `item in value`."""
        if type(value) is str:
            self.charge((len(value) + (len(item) if type(item) is str else 0)) >> 6)
            return item in value
        if isinstance(value, (dict, KEYS)):
            self.key(item)
            return item in value
        return item in self.counted(value, self.weight(item))

    def sliced(self, value: Any) -> Any:
        """Value of which a slice is taken."""
        if isinstance(value, str):
            if len(value) > SHORT:
                self.charge(len(value) >> 6)
        elif isinstance(value, list | tuple):
            self.charge(len(value) >> 3)
        return value

    def counted(self, value: Any, units: int = 4) -> Any:
        """Value to iterate over: paid now where its length is known, else while it is iterated over."""
        if type(value) is list or isinstance(value, _SIZED):
            self.charge(units * len(value))
            return value
        if isinstance(value, Undefined) or not hasattr(value, "__iter__"):
            return value
        self.charge(LAZY_UNITS)
        return self._counting(value, units)

    def _counting(self, value: Any, units: int) -> Iterator[Any]:
        for each in value:
            self.charge(units)
            yield each

    # calls -------------------------------------------------------------------------------------

    def method(self, owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Result of a call of an attribute."""
        kind = type(owner)
        if not kwargs and (not args or (type(args[0]) is str and len(args[0]) <= SHORT)):
            if kind is str and name in SHRINKING_METHODS:
                size = len(owner)
                if size <= SHORT:
                    return getattr(owner, name)(*args)
                if name not in COSTLY_METHODS:
                    self.charge(size >> 4)
                    return getattr(owner, name)(*args)
            elif kind is dict and name in DICT_METHODS and name not in owner:
                return getattr(owner, name)(*args)
        environment: Any = self.environment
        return environment.call(self, environment.getattr(owner, name), *args, **kwargs)


GROWING_METHODS: Final = frozenset({"replace", "join", "expandtabs", "center", "ljust", "rjust", "zfill"})
SHRINKING_METHODS: Final = (
    frozenset(name for name in dir(str) if name[0] != "_")
    - GROWING_METHODS
    - {*("format", "format_map", "encode", "maketrans", "translate")}
)
"""Methods of a text with a result that is about as long as it."""
COSTLY_METHODS: Final = frozenset({"split", "splitlines", "rfind", "rindex", "rsplit", "rpartition"})
"""Methods that cost more than one look at the text."""
DICT_METHODS: Final = frozenset({"get", "items", "keys", "values"})
