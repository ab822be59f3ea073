"""Generated parts of docs/ are current."""

import pytest

from tests.pages import DOCS, PAGES, current


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == current(name), "run `make docs`"
