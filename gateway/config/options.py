"""What an option is: a field of a frozen struct with its type, unit and reason, read from text.

The structs (`config.py`, `agent/config.py`) only list fields; flags, `--help`, the reference page and the
words of refusals come from here.
"""

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import msgspec
from msgspec import Meta

from gateway.core.errors import ConfigError

ENV_PREFIX = "KVGATE_"
MAX_SECONDS = 365 * 86400
"""A timer of `inf` is an error in the event loop, at the first request; here it is one at start."""

Struct = TypeVar("Struct", bound=msgspec.Struct)
_WHERE = re.compile(r"at `(\w+)`")
_IN_TABLE = re.compile(r"\$\.(\w+)\[\.\.\.\]")
_UNKNOWN = re.compile(r"unknown option `([^`]+)`$")


def option(description: str, unit: str = "", **limits: Any) -> Meta:
    """For `Annotated`: what and why, the unit, and msgspec's limits."""
    if unit == "seconds":
        limits["le"] = MAX_SECONDS
    return Meta(description=description, extra={"unit": unit}, **limits)


@dataclass(frozen=True, slots=True)
class Option:
    """One field as `--help` and the reference page show it."""

    name: str
    default: Any
    unit: str
    reason: str
    is_list: bool
    is_bool: bool
    choices: tuple[str, ...]
    is_map: bool = False
    is_table: bool = False
    """In a file only: what is nested does not go into a flag."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        default = "none" if self.default in ([], {}, "") else self.default
        unit = f" {self.unit}" if self.unit in ("seconds", "bytes") else ""
        return f"{self.reason} Default: {default}{unit}."

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) if self.choices else (self.unit or "TEXT").upper()


def options(struct: type[msgspec.Struct]) -> Iterator[Option]:
    """Every field, in order."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        meta = field.type
        assert isinstance(meta, msgspec.inspect.Metadata)
        schema = meta.extra_json_schema or {}
        has_default = field.default is not msgspec.NODEFAULT
        kind = meta.type
        yield Option(
            name=field.name,
            default=field.default if has_default else {} if _is_map(kind) else [],
            unit=(meta.extra or {}).get("unit", ""),
            reason=schema.get("description", ""),
            is_list=isinstance(kind, msgspec.inspect.ListType),
            is_bool=isinstance(kind, msgspec.inspect.BoolType),
            choices=tuple(map(str, kind.values)) if isinstance(kind, msgspec.inspect.LiteralType) else (),
            is_map=_is_map(kind),
            is_table=_is_map(kind) and isinstance(kind.value_type, msgspec.inspect.StructType),
        )


def _is_map(kind: Any) -> TypeGuard[msgspec.inspect.DictType]:
    return isinstance(kind, msgspec.inspect.DictType)


class Parser(argparse.ArgumentParser):
    """Of a command with subcommands: one that is given what it does not know says what it has instead."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            given = next((each for each in unknown if each.startswith("-")), unknown[0]).partition("=")[0]
            words = meant(given, self._option_string_actions, "--") or f"; see {self.prog} --help"
            self.exit(2, f"{self.prog}: there is no {given}{words}\n")
        return known, unknown


def add_flags(
    parser: argparse.ArgumentParser,
    struct: type[msgspec.Struct],
    *,
    has_variables: bool = False,
    prefix: str = "",
) -> None:
    """None for each that is not given; of those whose names begin with `prefix`. `has_variables`: the
    environment is read too, and `--help` says so."""
    for each in options(struct):
        if not each.name.startswith(prefix) or each.is_table:
            continue
        text = f"{each.help} {each.variable}" if has_variables else each.help
        text = text.replace("%", "%%")
        if each.is_bool:
            parser.add_argument(each.flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            action = "append" if each.is_list or each.is_map else "store"
            parser.add_argument(each.flag, action=action, default=None, metavar=each.metavar, help=text)


def from_flags(flags: Mapping[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Those that were given. Raises ConfigError that names the flag."""
    values = {name: value for name, value in flags.items() if value is not None}
    maps = {each.name for each in options(struct) if each.is_map}
    for name, value in values.items():
        source = f"--{name.replace('_', '-')}"
        if name in maps and isinstance(value, list):
            values[name] = _map_of(value, source)
        convert({name: values[name]}, struct, source)
    return values


def _map_of(items: list[str], source: str) -> dict[str, str]:
    """Of NAME=VALUE each."""
    wrong = [item for item in items if not all(item.partition("="))]
    if wrong:
        raise ConfigError(f"{source}: '{wrong[0]}' is not NAME=VALUE")
    return {name: value for name, _, value in (item.partition("=") for item in items)}


def convert(values: Mapping[str, Any], struct: type[Struct], source: str, *, strict: bool = False) -> Struct:
    """Text from flags and environment is read as the field's type. Raises ConfigError."""
    try:
        return msgspec.convert(values, struct, strict=strict)
    except msgspec.ValidationError as exc:
        message = _placed(str(exc), values, struct, strict=strict)
        message = message.replace("Object contains unknown field", "unknown option").replace("$.", "")
        raise ConfigError(f"{source}: {message}{_right(message, struct)}") from exc


def _placed(message: str, values: Mapping[str, Any], struct: type[msgspec.Struct], *, strict: bool) -> str:
    """With the name of the table that is wrong, which msgspec writes as "[...]"."""
    if not (where := _IN_TABLE.search(message)):
        return message
    field = where[1]
    for name, table in values[field].items():
        try:
            msgspec.convert({field: {name: table}}, struct, strict=strict)
        except msgspec.ValidationError as exc:
            if str(exc) == message:
                return message.replace(f"{field}[...]", f'{field}."{name}"', 1)
    return message


def _right(message: str, struct: type[msgspec.Struct]) -> str:
    """What would have been: the name that was meant, a word of a few, a list."""
    known = {each.name: each for each in options(struct)}
    if unknown := _UNKNOWN.search(message):
        return meant(unknown[1].replace("-", "_").lower(), known)
    where = _WHERE.search(message)
    wrong = known.get(where[1]) if where else None
    if wrong and wrong.choices:
        return f"; it is {', '.join(wrong.choices[:-1])} or {wrong.choices[-1]}"
    return f'; it is a list, as in {wrong.name} = ["…"]' if wrong and wrong.is_list else ""


def meant(given: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a refusal of what is none of the `known` names, which all begin with the prefix."""
    names = [name.removeprefix(prefix) for name in known]
    near = difflib.get_close_matches(given.removeprefix(prefix), names, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def from_environment(environ: Mapping[str, str], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """What KVGATE_ variables set. Raises ConfigError for one that is no option."""
    known = {each.variable: each for each in options(struct)}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or _is_service_link(variable, text):
            continue
        if variable not in known:
            words = meant(variable, known, ENV_PREFIX) or "; see kvgate serve --help"
            raise ConfigError(f"environment: {variable} is no option{words}")
        option, source = known[variable], f"environment: {variable}"
        name, is_list = option.name, option.is_list or option.is_map
        if option.is_table:
            raise ConfigError(f"{source}: {name} goes into a file (--config)")
        value: Any = [item.strip() for item in text.split(",") if item.strip()] if is_list else text
        value = _map_of(value, source) if option.is_map else value
        convert({name: value}, struct, source)
        values[name] = value
    return values


_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_(HOST|PORT.*)|PORT_[0-9]+_(TCP|UDP|SCTP).*)")


def _is_service_link(variable: str, text: str) -> bool:
    """Kubernetes gives each pod such variables for Services named kvgate or kvgate-something."""
    rest = variable.removeprefix(ENV_PREFIX)
    return bool(_SERVICE_LINK.fullmatch(rest)) or (rest.endswith("PORT") and "://" in text)
