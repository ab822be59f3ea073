"""Files of a model's directory, one by one; test_prompt_encoder.py loads such directories whole."""

import json
from pathlib import Path

import pytest

from gateway.tokenization.chat_template import PromptError
from gateway.tokenization.model_files import (
    added_tokens,
    missing_tokens,
    read_config,
    special_tokens,
    template_sources,
)


def test_special_tokens_of_older_models_are_in_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    assert special_tokens(read_config(tmp_path)) == {"bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {}}))
    assert special_tokens(read_config(tmp_path)) == {}


def test_special_tokens_are_texts_or_objects() -> None:
    config = {"eos_token": {"content": "</s>"}, "pad_token": None, "add_bos_token": True, "model_max": 5}
    assert special_tokens(config) == {"eos_token": "</s>"}
    assert missing_tokens(config) == [{"content": "</s>"}]


def test_added_tokens_are_in_the_order_of_their_numbers() -> None:
    assert added_tokens({"added_tokens_decoder": {"10": {"content": "b"}, "9": {"content": "a"}}}) == [
        {"content": "a"},
        {"content": "b"},
    ]


def test_templates_are_read_from_the_configuration(tmp_path: Path) -> None:
    assert template_sources(tmp_path, {}) == {}
    assert template_sources(tmp_path, {"chat_template": "x"}) == {"default": "x"}
    named = [{"name": "rag", "template": "y"}]
    assert template_sources(tmp_path, {"chat_template": named}) == {"rag": "y"}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(PromptError, match=str(tmp_path)):
        template_sources(tmp_path, {})
