"""The options of models: where their tokenizers are, their other names; all are fields of `Config`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from gateway.config.options import option
from gateway.config.workers import Workers


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[models."org/name"]`, by a name under which workers serve it, or by what they call its root.

    tokenizer   directory, or a name on the hub or in its cache; without it: what the workers call its root
    template    file with the chat template that the workers were started with, in place of the model's own
    renderer    who makes its prompts; auto: what its files say; worker: always the worker
    aliases     other names that clients may use for it
    """

    tokenizer: str = ""
    template: str = ""
    renderer: Literal["auto", "jinja", "harmony", "mistral", "worker"] = "auto"
    aliases: list[str] = msgspec.field(default_factory=list)


class Models(Workers, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: Annotated[
        dict[str, ModelTable],
        option(
            'Tables [models."org/name"], by a name that workers serve or by their root: tokenizer, template, '
            "renderer, aliases; docs/guides/models.md. A model without one is looked for by its root."
        ),
    ] = msgspec.field(default_factory=dict)
    hub: Annotated[
        bool,
        option(
            "Fetch tokenizers (never weights) from the Hugging Face hub where they are on no disk here; "
            "HF_HUB_OFFLINE says no too."
        ),
    ] = True
    probe_tokens: Annotated[
        bool,
        option(
            "Ask each worker that joins for its tokens of 20 prompts: one that makes others than our "
            "tokenizer is asked for those of requests too, or routed on load. Off: ours are believed."
        ),
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        aliases_of(self.models)


def aliases_of(models: Mapping[str, ModelTable]) -> dict[str, str]:
    """What each alias stands for. Raises ValueError for one that stands for two, or is a model itself."""
    found: dict[str, str] = {}
    for model, table in models.items():
        for alias in table.aliases:
            if not alias or alias in models:
                raise ValueError(f"models.{model}.aliases: '{alias}' is a model itself; take another name")
            if found.setdefault(alias, model) != model:
                raise ValueError(f"models.{model}.aliases: '{alias}' stands for {found[alias]} already")
    return found
