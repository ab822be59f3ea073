"""The options in effect, each with its source, for people and programs; secrets are left out. Pure.

`ConfigReader.values`, `.sources` ─► `effective_options` ─┬─► `toml_lines`: a file that `--config` reads again
                                                         └─► `json_values`: by path, "redis.timeout_s"
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from gateway.config import Config
from gateway.config.options import Option, options
from gateway.config.reading import ConfigReader, ValueSource

DEFAULT = ValueSource("default", "default")
_SECRETS = re.compile(
    r"(?<=://)[^/@\s?#]+(?=@)|(?<=[?&])(?P<name>[^=&\s#]*(?:key|token|secret|passw|auth|sig)[^=&\s#]*=)[^&\s#]+",
    re.I,
)
"""User and password of a URL, and parameters that are named as a secret is."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class EffectiveOption(NamedTuple):
    """An option with its value in plain types; None stands for a secret, which is not shown."""

    option: Option
    value: Any
    source: ValueSource


def effective_options(reader: ConfigReader[Config], *, given_only: bool = False) -> Iterator[EffectiveOption]:
    """Yield every option, or those that a source gives. Raises ConfigErrors with every mistake."""
    config = reader.checked()
    for option in options(Config):
        source = reader.sources.get(option.key, DEFAULT)
        value = without_secrets(msgspec.to_builtins(option.of(config)))
        if source is DEFAULT and given_only:
            continue
        yield EffectiveOption(option, None if option.is_secret and value else value, source)


def without_secrets(value: Any) -> Any:
    """Return a value in plain types with `***` for the secrets in its URLs, and without fields that are
    None."""
    if isinstance(value, str):
        return _SECRETS.sub(lambda found: f"{found['name'] or ''}***", value)
    if isinstance(value, Mapping):
        return {
            without_secrets(name): without_secrets(each) for name, each in value.items() if each is not None
        }
    return [without_secrets(each) for each in value] if isinstance(value, list | tuple) else value


def json_values(effective: Iterable[EffectiveOption]) -> dict[str, Any]:
    """Values by path, each with the kind and the name of its source; a secret has `is_secret` in place of
    its value."""
    return {
        each.option.path: {
            **({"is_secret": True} if each.value is None else {"value": each.value}),
            "source": each.source.kind,
            "name": each.source.name,
        }
        for each in effective
    }


def toml_lines(effective: Iterable[EffectiveOption]) -> Iterator[str]:
    """Lines of a configuration file, with each value's source behind it."""
    for name, given in groupby(effective, lambda each: each.option.table or each.option.name):
        first, *rest = given
        if first.option.is_table:
            for inner, table in first.value.items():
                yield f"[{name}.{_key(inner)}]  # {first.source}"
                yield from (f"{_key(key)} = {_toml(value)}" for key, value in table.items())
                yield ""
            continue
        yield f"[{name}]"
        for each in (first, *rest):
            line = "is set, and not shown" if each.value is None else f"= {_toml(each.value)}"
            yield f"{'# ' if each.value is None else ''}{each.option.name} {line}  # {each.source}"
        yield ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else repr(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"
