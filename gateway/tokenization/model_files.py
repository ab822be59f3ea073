"""Files of a model's directory: tokenizer_config.json, and its chat templates wherever they are.

Errors are PromptErrors with the path and the reason.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.core.decode_errors import UNREADABLE
from gateway.tokenization.chat_template import NotRendered, PromptError, Template


def read_config(directory: Path) -> dict[str, Any]:
    """Contents of tokenizer_config.json, with the special tokens that older models keep in a file of their
    own."""
    config = _json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _json(directory / "special_tokens_map.json")
    if config.get("split_special_tokens"):
        raise PromptError(f"{directory}: split_special_tokens is not supported")
    return config


def read_model_config(directory: Path) -> dict[str, Any]:
    """Contents of config.json; empty where there is none that can be read."""
    try:
        return _json(directory / "config.json")
    except PromptError:
        return {}


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *UNREADABLE) as exc:
        raise PromptError(f"{path}: {exc}") from exc
    if not isinstance(data, dict):
        raise PromptError(f"{path}: not an object")
    return data


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens as variables of the template: bos_token and its like, and those that a model names
    itself."""
    extra = config.get("extra_special_tokens")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    named |= extra if isinstance(extra, dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def added_tokens(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Tokens that the configuration adds to tokenizer.json, or gives other flags."""
    decoder = config.get("added_tokens_decoder") or {}
    return [token for _, token in sorted(decoder.items(), key=lambda item: int(item[0]))]


def missing_tokens(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Special tokens that the configuration names, some of which tokenizer.json may lack."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    values = [
        value for key, value in config.items() if key.endswith("_token") and not isinstance(value, bool)
    ]
    values += extra.values() if isinstance(extra, dict) else extra
    return [{"content": value} if isinstance(value, str) else value for value in values if value is not None]


def template_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name. Files beat the configuration, which has one text or a list of named ones."""
    files = {"default": directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    try:
        found = {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except (OSError, ValueError) as exc:
        raise PromptError(f"{directory}: {exc}") from exc
    if found:
        return found
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, Sequence):
        return {each["name"]: each["template"] for each in given}
    return {}


def read_templates(
    directory: Path, sources: Mapping[str, str], compiled: Callable[[str], Template]
) -> dict[str, Template]:
    if not sources:
        raise PromptError(f"{directory}: no chat template")
    try:
        return {name: compiled(source) for name, source in sources.items()}
    except NotRendered:
        raise
    except PromptError as exc:
        raise PromptError(f"{directory}: {exc}") from exc
