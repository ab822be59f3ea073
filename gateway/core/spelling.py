"""Names in messages: the nearest known one to one that is unknown, and a list of some."""

import difflib
from collections.abc import Iterable

MAX_NAMED = 20
"""Names in a message; a fleet may serve thousands."""


def meant(given: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a refusal, "; did you mean NAME?", or nothing where no name is near. `prefix`, which all
    known names begin with, does not count as likeness."""
    names = [name.removeprefix(prefix) for name in known]
    near = difflib.get_close_matches(given.removeprefix(prefix), names, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def shortened(names: Iterable[str]) -> str:
    """Join names, but no more than `MAX_NAMED`; the others are counted."""
    given = list(names)
    more = f" and {len(given) - MAX_NAMED} more" if len(given) > MAX_NAMED else ""
    return ", ".join(given[:MAX_NAMED]) + more
