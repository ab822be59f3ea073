"""Old names lead to new ones, and no name is both."""

import pytest

from gateway.config import by_key
from gateway.config.reading import FILE, FLAG, VARIABLE
from gateway.config.renamed import REMOVED, RENAMED, old_name


def test_new_names_are_options_and_old_ones_are_not() -> None:
    assert set(RENAMED.values()) <= by_key().keys()
    assert not (RENAMED.keys() | REMOVED.keys()) & by_key().keys()


@pytest.mark.parametrize(
    ("key", "form", "words"),
    [
        ("verify", FLAG, "--verify is now --usage-injection"),
        ("verify", VARIABLE, "KVGATE_VERIFY is now KVGATE_USAGE_INJECTION"),
        ("verify", FILE, "`verify` is now usage_injection in [proxy]"),
        ("hub", FLAG, "--hub is now hub in [tokenizer] of a file (--config), or KVGATE_TOKENIZER_HUB"),
        ("hub", VARIABLE, "KVGATE_HUB is now KVGATE_TOKENIZER_HUB"),
        ("no_load_adapters", FLAG, "--no-load-adapters is now --no-admin-load-adapters"),
        ("max_head_bytes", VARIABLE, "KVGATE_MAX_HEAD_BYTES was removed: a request's head may have 64 KiB"),
        ("max_attempts", FILE, ""),
        ("port", FLAG, ""),
        ("never_was", FLAG, ""),
    ],
)
def test_an_old_name_is_answered_with_the_new_one(key: str, form: str, words: str) -> None:
    assert old_name(key, form, by_key()) == words
