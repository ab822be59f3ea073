"""Search in Prometheus text for the few samples that are needed.

A page has 60 KB of which some ten lines are of use, hence a search and no parser.
"""

from collections.abc import Iterator
from math import isfinite

MAX_VALUE = 1e300
MAX_SAMPLES = 4096
"""Samples of one name at most: four for each data-parallel rank of the largest deployments."""
MAX_DIGITS = 18
"""Digits of a number at most: Python itself raises for numbers of thousands of digits."""


def series(text: str, prefix: str) -> Iterator[tuple[str, float]]:
    """Labels and value of each sample with a line that starts with `prefix`; they are adjacent. Raises
    ValueError for more samples than any engine has."""
    num, start = 0, 0 if text.startswith(prefix) else text.find("\n" + prefix) + 1
    while text.startswith(prefix, start):
        end = text.find("\n", start)
        end = end if end >= 0 else len(text)
        labels, _, value = text[start + len(prefix) - 1 : end].rpartition(" ")
        yield from sample(labels, value)
        num, start = num + 1, end + 1
        if num > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES:,} samples of {prefix.rstrip(' {')}")


def sample(labels: str, value: str) -> Iterator[tuple[str, float]]:
    try:
        number = float(value)
    except ValueError:
        return
    if isfinite(number) and abs(number) <= MAX_VALUE:  # sums of them stay finite
        yield labels, number


def label(labels: str, name: str) -> str | None:
    for before in "{,":
        _, found, rest = labels.partition(f'{before}{name}="')
        if found:
            return rest.partition('"')[0]
    return None


def integer(text: str | None) -> int | None:
    """Integer of a text; None for anything else, and for more digits than any count of an engine has."""
    is_number = text and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit()
    return int(text) if text and is_number else None
