"""Tests of loads and proofs: each happens where it is asked for, except in files about the text alone."""

from collections.abc import Iterator

import pytest

from tests.support import shared_tokenizers

ABOUT_TEXT = ("test_mistral.py", "test_mlx.py", "test_prompt_encoder.py", "test_sglang.py")


@pytest.fixture(scope="module", autouse=True)
def own_loads(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.name in ABOUT_TEXT:
        yield
        return
    with shared_tokenizers.unshared():
        yield
