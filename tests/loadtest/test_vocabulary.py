from pathlib import Path

import pytest

from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest.vocabulary import tokenizer_32k


@pytest.mark.slow
def test_a_tokenizer_is_trained_once_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = (tokenizer_32k(400, 20_000, tmp_path / name) for name in ("a", "b"))
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    before = (first / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer_32k(400, 20_000, tmp_path / "a") == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == before
    assert not list(first.glob("unfinished*"))
    assert "fastokens" in repr(PromptEncoder.load(first))
