"""The request that carries a prefix."""

import json

import pytest

from gateway.core.blocks import hash_blocks, root_hash, tokens_of
from gateway.warming.body import body_of
from gateway.warming.hot_prefixes import HotPrefixes, PrefixSpace


@pytest.mark.parametrize("salt", [None, "salt"])
def test_a_prefix_goes_with_its_salt_and_without_any_other_text(salt: str | None) -> None:
    prefixes = HotPrefixes(1 << 20, 60.0)
    for last in (8, 9):
        tokens = tokens_of([*range(8), *[last] * 4])
        prefixes.note(PrefixSpace("m", None, salt, 4), hash_blocks(tokens, 4, root_hash("m")), tokens, 0.0)
    (branch,) = prefixes.hot(lambda space: True, 0.0)
    fields = json.loads(body_of(branch, 2, "name", 7))
    assert fields.pop("cache_salt", None) == salt
    assert fields == {
        "model": "name",
        "prompt": list(range(8)),
        "max_tokens": 1,
        "temperature": 0,
        "priority": 7,
    }
    short = json.loads(body_of(branch, 1, "name", None))
    assert (short["prompt"], "priority" in short) == (list(range(4)), False)
