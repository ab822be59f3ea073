"""The nearest known name to one that is unknown."""

import difflib
from collections.abc import Iterable


def meant(given: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a refusal, "; did you mean NAME?", or nothing where no name is near. `prefix`, which all
    known names begin with, does not count as likeness."""
    names = [name.removeprefix(prefix) for name in known]
    near = difflib.get_close_matches(given.removeprefix(prefix), names, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
