"""Configuration of tokenizers, from flags and tables."""

from datetime import datetime, timedelta

import pytest

from gateway.app import bundled_tokenizer
from gateway.config import config_of
from gateway.config.models import ModelTable
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.from_config import catalog_of, zone_of
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


@pytest.mark.parametrize(
    ("name", "hours"), [("UTC", 0), ("utc", 0), ("+09:00", 9), ("-03:30", -3.5), ("Asia/Tokyo", 9)]
)
def test_zone_of_the_workers_clocks_is_configured(name: str, hours: float) -> None:
    zone = zone_of(name)
    assert zone is not None and zone.utcoffset(datetime(2026, 1, 1)) == timedelta(hours=hours)
    prompts = PromptSource({}, Metrics())
    catalog_of(config_of(template_timezone=name), prompts, Fleet())
    assert prompts.zone == zone


@pytest.mark.parametrize("name", ["Mars/Base", "+9", "+24:00", "+09:60", "../x", "/etc/passwd", "local time"])
def test_unknown_zone_is_refused_with_what_to_write(name: str) -> None:
    assert zone_of("") is None
    with pytest.raises(ConfigError, match="template_timezone: no zone .*Europe/Berlin, UTC or"):
        zone_of(name)
