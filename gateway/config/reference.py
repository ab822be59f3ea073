"""The reference page of options, as Markdown, from their declarations."""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from gateway.config import Config
from gateway.config.options import Option, options

INTRODUCTION = """# Options

Generated from the declarations in `gateway/config/` by `make docs`. Flags override environment variables,
these override the file given with `--config`, and the file overrides the defaults. Lists are separated by
commas in the environment and repeated as flags. Durations are numbers of the unit in the table, or have one:
`300ms`, `30s`, `5m`, `1h30m`. Options without a flag are rare: file and environment only.
SIGHUP or `POST /admin/config/reload` changes live options
([operations](../operations/operating.md#changing-the-configuration)); the rest by a restart.

A file has the tables below, and a flag is made of table and key: `[redis] timeout_s` is `--redis-timeout-s`
and `KVGATE_REDIS_TIMEOUT_S`. The tables {plain}
add no prefix: `[server] port` is `--port`.
"""


def reference_page(agent: type[msgspec.Struct]) -> str:
    """Return the reference page of options; `agent` is the configuration of `kvgate agent`."""
    return "\n".join([*_introduction(), *_tables(), *_agent(agent)]) + "\n"


def _introduction() -> Iterator[str]:
    plain = dict.fromkeys(f"`[{each.table}]`" for each in options(Config) if each.is_plain)
    *names, last = plain
    yield INTRODUCTION.format(plain=f"{', '.join(names)} and {last}")


def _tables() -> Iterator[str]:
    for name, rows in groupby(options(Config), lambda each: each.table or each.name):
        first, *rest = rows
        if first.is_table:
            yield from (f"## `[{name}.NAME]`", "", f"{first.help} Reload: {_reload(first)}.", "")
            continue
        yield from (f"## `[{name}]`: {first.title}", "")
        yield "| key | flag | environment | unit | default | reload | meaning |"
        yield "|---|---|---|---|---|---|---|"
        yield from map(_row, [first, *rest])
        yield ""


def _row(option: Option) -> str:
    flag = f"`{option.flag}`" if option.has_flag else ""
    names = f"`{option.name}` | {flag} | `{option.variable}`"
    return f"| {names} | {_unit(option)} | {_default(option)} | {_reload(option)} | {option.help} |"


def _reload(option: Option) -> str:
    return f"live: {option.live}" if option.live else "restart"


def _unit(option: Option) -> str:
    return " or ".join(f"`{choice}`" for choice in option.choices) or option.unit


def _default(option: Option) -> str:
    if option.default in ([], {}):
        return ""
    return str(option.default).lower() if option.is_bool else str(option.default)


def _agent(agent: type[msgspec.Struct]) -> Iterator[str]:
    yield from ("## `kvgate agent`", "", "Flags only.", "")
    yield from ("| flag | unit | default | meaning |", "|---|---|---|---|")
    for each in options(agent):
        yield f"| `{each.flag}` | {_unit(each)} | {_default(each)} | {each.help} |"
