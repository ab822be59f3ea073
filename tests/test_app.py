"""What the composition root reads before anything is opened."""

import logging
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer, worker_headers, worker_urls
from gateway.core.errors import ConfigError
from gateway.metrics import Metrics
from gateway.prompts import PromptSource, load_tokenizers, log_templates


def test_the_workers_key_is_read_from_its_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    assert worker_headers(str(key)) == {"authorization": "Bearer sk-1"}
    assert worker_headers("") == {}


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", b"\xff"])
def test_a_key_that_cannot_be_used_is_refused_without_showing_it(
    tmp_path: Path, content: bytes | None
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^worker_key_file: .*key (cannot be read|holds no key)$"):
        worker_headers(str(key))


def test_urls_are_checked_and_counted_once() -> None:
    assert worker_urls(["http://a:1/", "http://a:1"]) == ["http://a:1"]
    with pytest.raises(ConfigError, match=r"^worker: 'a:1' is not an http"):
        worker_urls(["a:1"])


def test_the_log_tells_which_encoder_and_rendering_is_in_use_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "kvgate"):
        loaded = load_tokenizers([f"m={bundled_tokenizer()}"])
        log_templates(PromptSource(loaded, Metrics()))
    tokenizer, template = caplog.messages
    assert tokenizer.startswith("tokenizer of m: fastokens (agrees with tokenizers on ")
    assert template.startswith("chat template of m, default: incremental rendering (proved in 2 settings")
