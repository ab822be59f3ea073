"""The declaration of an option: one field of a frozen struct with its type, default, unit, help and reload.

    class RedisSection(Section, frozen=True):          redis: Annotated[RedisSection, table("State …")]
        timeout_s: Annotated[float, option("Timeout …", "seconds", gt=0)] = 1.0

is `config.redis.timeout_s`, `[redis] timeout_s` in a file, `--redis-timeout-s` and KVGATE_REDIS_TIMEOUT_S.
Tables of the gateway's own options (`is_plain`) add no prefix: `[server] port` is `--port`. The main option
of a table may have a flag of its own: `[redis] url` is `--redis`. `Option.key` is the flag's name as Python
writes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

import msgspec
from msgspec import Meta

ENV_PREFIX = "KVGATE_"
MAX_SECONDS = 365 * 86400
"""A timer of `inf` is an error in the event loop, at the first request; here it is one at start."""
AT_ONCE, REQUESTS, CONNECTIONS = "at once", "new requests", "new connections"
"""Values of `live`: a reload changes the option in a running gateway, from then on. Without it a restart
does."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration."""


def table(title: str, *, is_plain: bool = False) -> Meta:
    """Metadata of a table of options, for `Annotated` around a `Section`."""
    return Meta(description=title, extra={"is_plain": is_plain})


def option(
    description: str,
    unit: str = "",
    *,
    live: str = "",
    flag: str = "",
    is_rare: bool = False,
    is_common: bool = False,
    is_secret: bool = False,
    **limits: Any,
) -> Meta:
    """Metadata of an option, for `Annotated`: help, unit and msgspec's limits.

    `flag` replaces the one that follows from table and name. A rare option has no flag: file and environment
    only. `kvgate serve --help` lists the common ones. The value of a secret one is never logged.
    """
    if unit == "seconds":
        limits["le"] = MAX_SECONDS
    traits = {"is_rare": is_rare, "is_common": is_common, "is_secret": is_secret}
    return Meta(description=description, extra={"unit": unit, "live": live, "key": flag, **traits}, **limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option as `--help` and the reference page show it. `table` is empty in a struct without tables."""

    name: str
    table: str = ""
    title: str = ""
    """The table's heading."""
    is_plain: bool = False
    """True if the table adds no prefix to flags."""
    key: str = ""
    default: Any = ""
    unit: str = ""
    help: str = ""
    live: str = ""
    is_rare: bool = False
    is_common: bool = False
    is_secret: bool = False
    is_list: bool = False
    is_bool: bool = False
    is_map: bool = False
    is_table: bool = False
    """Tables by name, as [tenants.NAME]: in a file only, since what is nested does not go into a flag."""
    choices: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Dotted name of the option, as in a file and in Python: redis.timeout_s."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def place(self) -> str:
        """Name of the option in messages about files: timeout_s in [redis]."""
        if self.is_table:
            return f"[{self.name}.NAME]"
        return f"{self.name} in [{self.table}]" if self.table else self.name

    @property
    def has_flag(self) -> bool:
        return not (self.is_table or self.is_rare)

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.upper()

    @property
    def help_with_default(self) -> str:
        default = "none" if self.default in ([], {}, "") else self.default
        default = str(default).lower() if self.is_bool else default
        unit = f" {self.unit}" if self.unit in ("seconds", "bytes") else ""
        return f"{self.help} Default: {default}{unit}."

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) if self.choices else (self.unit or "TEXT").upper()

    def nested(self, value: object) -> dict[str, Any]:
        """Return a value as part of a configuration, nested in its table."""
        return {self.table: {self.name: value}} if self.table else {self.name: value}

    def of(self, config: object) -> Any:
        """The option's value in a configuration."""
        return getattr(getattr(config, self.table) if self.table else config, self.name)


@cache
def options(struct: type[msgspec.Struct]) -> tuple[Option, ...]:
    """Every option, in order: the fields of each table, and those of a struct without tables."""
    return tuple(_options(struct))


def _options(struct: type[msgspec.Struct]) -> Iterator[Option]:
    for field in _fields(msgspec.inspect.type_info(struct)):
        kind, schema, extra = _parts(field)
        if isinstance(kind, msgspec.inspect.StructType):
            title, is_plain = schema.get("description", ""), extra.get("is_plain", False)
            for inner in _fields(kind):
                yield _option(inner, field.name, title, is_plain=is_plain)
        else:
            yield _option(field)


def _fields(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Field, ...]:
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def _parts(field: msgspec.inspect.Field) -> tuple[msgspec.inspect.Type, Mapping[str, Any], Mapping[str, Any]]:
    meta = field.type
    assert isinstance(meta, msgspec.inspect.Metadata), f"{field.name} has no help"
    return meta.type, meta.extra_json_schema or {}, meta.extra or {}


def _option(
    field: msgspec.inspect.Field, table: str = "", title: str = "", *, is_plain: bool = False
) -> Option:
    kind, schema, extra = _parts(field)
    has_default = field.default is not msgspec.NODEFAULT
    traits = dict(extra)
    by_rule = field.name if is_plain or not table else f"{table}_{field.name}"
    key = traits.pop("key", "").replace("-", "_") or by_rule
    return Option(
        name=field.name,
        table=table,
        title=title,
        is_plain=is_plain,
        key=key,
        default=field.default if has_default else {} if _is_map(kind) else [],
        help=schema.get("description", ""),
        is_list=isinstance(kind, msgspec.inspect.ListType),
        is_bool=isinstance(kind, msgspec.inspect.BoolType),
        is_map=_is_map(kind),
        is_table=_is_map(kind) and isinstance(kind.value_type, msgspec.inspect.StructType),
        choices=tuple(map(str, kind.values)) if isinstance(kind, msgspec.inspect.LiteralType) else (),
        **traits,
    )


def _is_map(kind: Any) -> TypeGuard[msgspec.inspect.DictType]:
    return isinstance(kind, msgspec.inspect.DictType)
