"""Configuration of tokenizers, from flags and tables."""

import pytest

from gateway.app import bundled_tokenizer
from gateway.config import config_of
from gateway.config.models import ModelTable
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.from_config import catalog_of
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics

BUNDLED = str(bundled_tokenizer())


def catalog(**options: object) -> Catalog:
    return catalog_of(config_of(**options), PromptSource({}, Metrics()), Fleet())


def test_a_flag_for_one_model_is_its_table() -> None:
    status = catalog(
        tokenizer=[f"m={BUNDLED}"], models={"m": ModelTable(tokenizer="/nowhere", renderer="jinja")}
    ).describe()
    assert [(each["model"], each["tokenizer"]) for each in status] == [(BUNDLED, "loaded")]


def test_a_wrong_tokenizer_of_one_model_does_not_prevent_the_start() -> None:
    status = catalog(tokenizer=["m=/nowhere", BUNDLED]).describe()
    assert [(each["model"], each["tokenizer"]) for each in status] == [
        ("/nowhere", "broken"),
        ("all models", "loaded"),
    ]
    with pytest.raises(ConfigError, match="/nowhere"):
        catalog(tokenizer=["/nowhere"])


def test_without_tokenizers_none_is_loaded() -> None:
    assert catalog().describe() == []
    assert repr(catalog(tokenizer_hub=False, tokenizer_probe=False)) == "Catalog(0 roots, 0 tokenizers)"
