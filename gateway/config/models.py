"""Tables `[tokenizer]` and `[models."org/name"]`: tokenizers and renderers of the served models."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from gateway.config.options import Section, option


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one model, by a name that workers serve or by their root.

    tokenizer   directory, or a name on the hub or in its cache; without it: the root that workers report
    template    file with the chat template that the workers were started with, in place of the model's own
    renderer    maker of its prompts; auto: by its files; worker: always the worker
    aliases     other names that clients may use for it
    """

    tokenizer: str = ""
    template: str = ""
    renderer: Literal["auto", "jinja", "harmony", "mistral", "worker"] = "auto"
    aliases: list[str] = msgspec.field(default_factory=list)


class TokenizerSection(Section, frozen=True):
    path: Annotated[
        list[str],
        option(
            "Directory with tokenizer.json and chat template, for all models, or MODEL=DIR for one. By "
            "default kvgate looks for the root that workers report: as a directory here, in the Hugging Face "
            "cache, on the hub. Without a tokenizer a worker tokenizes each new prompt: a round trip.",
            "path",
            flag="tokenizer",
            is_common=True,
        ),
    ] = msgspec.field(default_factory=list)
    timeout_s: Annotated[
        float,
        option(
            "Longest wait for a worker's /tokenize for a prompt without a tokenizer here; beyond it the "
            "request is routed by load. Within it each worker gets the time that it usually takes for such a "
            "body, and a twentieth of it at least.",
            "seconds",
            gt=0,
            is_rare=True,
        ),
    ] = 1.0
    hub: Annotated[
        bool,
        option(
            "Download tokenizers (never weights) that no local disk has from the Hugging Face hub. "
            "HF_HUB_OFFLINE turns it off too.",
            is_rare=True,
        ),
    ] = True
    template_timezone: Annotated[
        str,
        option(
            "Time zone of the workers' clocks, for chat templates that print the day: a name like "
            "Europe/Berlin, UTC, or an offset like +09:00. By default each worker's day is asked at its "
            "/tokenize, when it joins and after each quarter of an hour; without an answer it is the "
            "gateway's own.",
            "zone",
            flag="template-timezone",
        ),
    ] = ""
    probe: Annotated[
        bool,
        option(
            "Compare each joining worker's tokens of 20 prompts with the gateway's. A worker that differs "
            "tokenizes its own requests, or is routed by load. Off: the gateway's tokens count.",
        ),
    ] = True


def aliases_of(models: Mapping[str, ModelTable]) -> dict[str, str]:
    """Models by alias. Raises ValueError for an alias of two models, or one that is a model itself."""
    found: dict[str, str] = {}
    for model, table in models.items():
        for alias in table.aliases:
            if not alias or alias in models:
                raise ValueError(
                    f"models.{model}.aliases: '{alias}' is the name of a model; choose another alias"
                )
            if found.setdefault(alias, model) != model:
                raise ValueError(f"models.{model}.aliases: '{alias}' already stands for {found[alias]}")
    return found
