"""Searches by windows find what searches of the whole find, at the borders of windows too."""

import re

import pytest

from gateway.core.windowed_search import WINDOW, count, find, has

KEY = re.compile(rb'"key"')


@pytest.mark.parametrize("at", [0, 1, WINDOW - 6, WINDOW - 5, WINDOW - 4, WINDOW - 1, WINDOW, 3 * WINDOW - 2])
def test_a_place_at_the_border_of_windows_is_found(at: int) -> None:
    body = b"x" * at + b'"key"' + b"x" * WINDOW
    assert find(body, b'"key"') == at and find(body, b'"key"', at) == at
    assert find(body, b'"key"', at + 1) == -1
    assert has(body, KEY, 5) and has(memoryview(body), KEY, 5)
    assert not has(body.replace(b"k", b"q"), KEY, 5)


def test_the_first_of_several_is_found() -> None:
    body = b"x" * 10 + b"ab" + b"x" * WINDOW + b"ab"
    assert (find(body, b"ab"), find(body, b"ab", 11), find(b"", b"ab")) == (10, WINDOW + 12, -1)


def test_a_count_ends_soon_after_its_bound() -> None:
    body = b"," * (4 * WINDOW)
    assert count(body, b",", 4 * WINDOW) == 4 * WINDOW and count(body, b",", 5) == WINDOW


def test_no_call_searches_more_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter lock is given back between them."""
    spans: list[int] = []

    class Pattern:
        def search(self, body: bytes, start: int, end: int) -> None:
            spans.append(end - start)

    assert not has(bytes(5 * WINDOW + 1), Pattern(), 26)  # type: ignore[arg-type]
    assert len(spans) == 6 and max(spans) <= WINDOW + 25
