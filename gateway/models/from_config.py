"""Catalog of tokenizers made from the configuration."""

import re
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.config import Config
from gateway.config.models import ModelTable
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.hub import Hub
from gateway.models.prompt_source import PromptSource

_OFFSET: Final = re.compile(r"([+-])(\d\d):(\d\d)")


def catalog_of(config: Config, prompts: PromptSource, fleet: Fleet) -> Catalog:
    """Catalog of a configuration. `--tokenizer MODEL=DIR` is the table of one model and overrides the
    configuration file. Raises ConfigError."""
    tables, any_model = dict(config.models), ""
    for spec in config.tokenizer.path:
        model, _, name = spec.rpartition("=")
        if model:
            table = tables.get(model, ModelTable())
            tables[model] = ModelTable(
                tokenizer=name, template=table.template, renderer=table.renderer, aliases=table.aliases
            )
        else:
            any_model = name
    return Catalog(
        prompts,
        fleet,
        tables=tables,
        any_model=any_model,
        hub=Hub(config.tokenizer.hub),
        probes=config.tokenizer.probe,
        zone=zone_of(config.tokenizer.template_timezone),
    )


def zone_of(name: str) -> tzinfo | None:
    """Time zone of a name or an offset like +09:00; None for "". Raises ConfigError."""
    if not name:
        return None
    if found := _OFFSET.fullmatch(name):
        hours, minutes = int(found[2]), int(found[3])
        offset = timedelta(hours=hours, minutes=minutes)
        if minutes < 60 and offset <= timedelta(hours=14):
            return timezone(-offset if found[1] == "-" else offset)
    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ConfigError(
            f"template_timezone: no zone '{name}' here; give one like Europe/Berlin, UTC or +09:00"
        ) from exc
