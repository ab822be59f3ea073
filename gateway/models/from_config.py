"""Catalog of tokenizers made from the configuration."""

from gateway.config import Config
from gateway.config.models import ModelTable
from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.hub import Hub
from gateway.models.prompt_source import PromptSource


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
    )
