"""From flags, environment and file to a configuration; every mistake is collected, with its source.

file ─► environment ─► flags ─► `ConfigReader.values` ─► `made`
           └─► `mistakes`, each with its source: the file, the variable, the flag
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gateway.config.options import ENV_PREFIX, Option, options
from gateway.core.durations import EXAMPLES, has_unit, seconds_of
from gateway.core.errors import ConfigError
from gateway.core.spelling import meant

Struct = TypeVar("Struct", bound=msgspec.Struct)
OldName = Callable[[str, str], str]
"""A sentence about a key that is no option, by where it was given (`FLAG`, `VARIABLE`, `FILE`): its new name
or the reason of its removal, or nothing."""
UNITS_PER_S: Mapping[str, float] = {"seconds": 1.0, "milliseconds": 1000.0}
"""Units of options that are durations, and how many of each are a second."""
FLAG, VARIABLE, FILE = "flag", "environment", "file"
ADMIN_KEY_VARIABLE = "KVGATE_ADMIN_KEY"
"""The key that `kvgate adapter` sends to an admin API, often set beside the options of a gateway."""
_ONE_TABLE = "; it is one table, as in [{}]"
_IN_TABLE = re.compile(r"\$\.([\w.]+)\[\.\.\.\]")


class ValueSource(NamedTuple):
    """Where a value was given: the kind (`FLAG`, `VARIABLE`, `FILE`), and its name there."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"environment: {self.name}" if self.kind == VARIABLE else self.name


class ConfigErrors(ConfigError):
    """All mistakes of a configuration."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class ConfigReader(Generic[Struct]):
    """Reader of a configuration's sources. Later ones override earlier ones; a wrong value is a mistake, and
    left out."""

    def __init__(self, struct: type[Struct], old_name: OldName = lambda key, form: "") -> None:
        self.mistakes: list[str] = []
        self.values: dict[str, Any] = {}
        self.sources: dict[str, ValueSource] = {}
        """The source of each value, by key; an option without one has its default."""
        self._struct = struct
        self._old_name = old_name
        self._options = list(options(struct))
        self._by_key = {each.key: each for each in self._options}

    def file(self, path: Path) -> None:
        try:
            tables = tomllib.loads(path.read_text())
        except OSError as exc:
            self.mistakes.append(f"{path}: cannot be read: {exc.strerror}")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            self.mistakes.append(f"{path}: is not TOML: {exc}")
        else:
            self.tables(tables, str(path))

    def tables(self, tables: Mapping[str, Any], path: str) -> None:
        """Read a file's tables, which must be valid by themselves, whatever overrides them."""
        source = ValueSource(FILE, path)
        names = {each.table for each in self._options}
        by_path = {each.path: each for each in self._options}
        for name, value in tables.items():
            if name in by_path:
                self._put(by_path[name], value, source)
            elif name in names and isinstance(value, dict):
                for inner, inner_value in value.items():
                    if (found := by_path.get(f"{name}.{inner}")) is not None:
                        self._put(found, inner_value, source)
                    else:
                        self.mistakes.append(f"{source}: {self._unknown_in(name, inner)}")
            elif name in names and _is_tables(value):
                self.mistakes.append(f"{source}: `{name}` is a list of tables{_ONE_TABLE.format(name)}")
            else:
                self.mistakes.append(f"{source}: {self._unknown_table(name, names | by_path.keys())}")

    def environment(self, environ: Mapping[str, str]) -> None:
        known = {each.variable: each for each in self._options}
        for variable, text in environ.items():
            is_ours = variable.startswith(ENV_PREFIX) and variable != ADMIN_KEY_VARIABLE
            if not is_ours or _is_service_link(variable, text):
                continue
            source = ValueSource(VARIABLE, variable)
            if variable not in known:
                words = self._old_name(variable.removeprefix(ENV_PREFIX).lower(), VARIABLE)
                near = meant(variable, known, ENV_PREFIX) or "; see kvgate serve --help-all"
                self.mistakes.append(f"environment: {words}" if words else f"{source} is not an option{near}")
            elif known[variable].is_table:
                self.mistakes.append(f"{source}: {known[variable].name} goes into a file (--config)")
            else:
                option = known[variable]
                is_several = option.is_list or option.is_map
                items = [item.strip() for item in text.split(",") if item.strip()]
                self._put(option, items if is_several else text, source)

    def flags(self, flags: Mapping[str, Any]) -> None:
        """Read the flags, by key; None stands for one that was not given."""
        for key, value in flags.items():
            if value is None:
                continue
            if key in self._by_key:
                self._put(self._by_key[key], value, ValueSource(FLAG, self._by_key[key].flag))
            else:
                words = self._old_name(key, FLAG) or f"there is no option {key}{meant(key, self._by_key)}"
                self.mistakes.append(words)

    def made(self) -> Struct:
        """Return the configuration without its wrong values. Raises ConfigErrors if options contradict one
        another."""
        try:
            return msgspec.convert(self.values, self._struct, strict=False)
        except msgspec.ValidationError as exc:
            raise ConfigErrors([*self.mistakes, f"configuration: {_plain(str(exc))}"]) from exc

    def checked(self) -> Struct:
        """Return the configuration that was read. Raises ConfigErrors with every mistake."""
        if self.mistakes:
            raise ConfigErrors(self.mistakes)
        return self.made()

    def _put(self, option: Option, value: Any, source: ValueSource) -> None:
        is_strict = source.kind == FILE  # which has types; all else is text
        is_pairs = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if option.is_map and not option.is_table and is_pairs:
            wrong = [item for item in value if not all(item.partition("="))]
            if wrong:
                self.mistakes.append(f"{source}: '{wrong[0]}' is not NAME=VALUE")
                return
            value = {name: text for name, _, text in (item.partition("=") for item in value)}
        if option.unit in UNITS_PER_S and isinstance(value, str) and has_unit(value):
            value = seconds_of(value) * UNITS_PER_S[option.unit]
        try:
            msgspec.convert(option.nested(value), self._struct, strict=is_strict)
        except msgspec.ValidationError as exc:
            message = self._placed(str(exc), option, value, is_strict=is_strict)
            if option.unit in UNITS_PER_S and isinstance(value, str):
                message = message.replace("Expected `float`, got `str`", f"'{value}' is not a duration")
            if not is_strict:  # the source names the option already
                message = _in_words(message.replace(f" - at `$.{option.path}`", ""), value)
            self.mistakes.append(f"{source}: {_plain(message)}{_right(message, option)}")
            return
        inner = self.values.setdefault(option.table, {}) if option.table else self.values
        inner[option.name] = value
        self.sources[option.key] = source

    def _placed(self, message: str, option: Option, value: Any, *, is_strict: bool) -> str:
        """Put the name of the wrong table into a message of msgspec, which writes "[...]"."""
        if not _IN_TABLE.search(message) or not isinstance(value, dict):
            return message
        return self._named(message, option, value, f"{option.name}[...]", is_strict=is_strict)

    def _named(self, message: str, option: Option, value: Any, mark: str, *, is_strict: bool) -> str:
        for name, one in value.items():
            try:
                msgspec.convert(option.nested({name: one}), self._struct, strict=is_strict)
            except msgspec.ValidationError as exc:
                if str(exc) == message:
                    return message.replace(mark, f'{mark.removesuffix("[...]")}."{name}"', 1)
        return message

    def _unknown_in(self, table: str, name: str) -> str:
        plain = name.replace("-", "_").lower()
        names = [each.name for each in self._options if each.table == table]
        elsewhere = next((each for each in self._options if plain in (each.name, each.key)), None)
        near = meant(plain, names) or (f"; did you mean {elsewhere.place}?" if elsewhere else "")
        return f"unknown option `{name}` - at `{table}`{near}"

    def _unknown_table(self, name: str, known: Collection[str]) -> str:
        plain = name.replace("-", "_").lower()
        if words := self._old_name(plain, FILE):
            return words
        found = self._by_key.get(plain)
        if found is not None and found.table:
            return f"`{name}` is now {found.place}"
        if name in known:
            return f"`{name}` is given a value{_ONE_TABLE.format(name)}"
        near = meant(plain, known)
        if not near and (keys := difflib.get_close_matches(plain, self._by_key, n=1)):
            near = f"; did you mean {self._by_key[keys[0]].place}?"
        return f"unknown option `{name}`{near}"


def _plain(message: str) -> str:
    return message.replace("Object contains unknown field", "unknown option").replace("$.", "")


_WORDS: Mapping[str, str] = {
    "Expected `int`, got `str`": "is not a whole number",
    "Expected `float`, got `str`": "is not a number",
    "Expected `bool`, got `str`": "is neither true nor false",
}
_BOUND = re.compile(r"Expected `(?:int|float)` (<=|>=|<|>) (\S+)")
_BOUNDS: Mapping[str, str] = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}


def _in_words(message: str, value: Any) -> str:
    """Say what is wrong with a flag or a variable in its user's words, not in those of types."""
    if message in _WORDS:
        return f"'{value}' {_WORDS[message]}"
    if found := _BOUND.fullmatch(message):
        return f"'{value}' is not {_BOUNDS[found[1]]} {found[2].removesuffix('.0')}"
    return message


def _right(message: str, option: Option) -> str:
    """Return the end of an error about an option: its permitted words, or the form of a list."""
    if option.unit in UNITS_PER_S and "is not a duration" in message:
        plain = "a number of seconds" if option.unit == "seconds" else f"a number of {option.unit}"
        return f"; give {plain}, or one with a unit, as in {EXAMPLES}"
    if option.choices:
        return f"; it is {', '.join(option.choices[:-1])} or {option.choices[-1]}"
    if option.is_list and "Expected `array`" in message:
        return f'; it is a list, as in {option.name} = ["…"]'
    if option.is_table and "Expected `object`" in message:
        return f"; there is one table for each, as in [{option.path}.NAME]"
    if option.is_map and "Expected `object`" in message:
        return f'; it is a table, as in {option.name} = {{NAME = "…"}}'
    return ""


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def convert(values: Mapping[str, Any], struct: type[Struct], source: str) -> Struct:
    """Convert the tables of a file to a configuration. Raises ConfigErrors."""
    reader = ConfigReader(struct)
    reader.tables(values, source)
    return reader.checked()


_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_(HOST|PORT.*)|PORT_[0-9]+_(TCP|UDP|SCTP).*)")


def _is_service_link(variable: str, text: str) -> bool:
    """True for variables that Kubernetes sets in each pod for Services named kvgate or kvgate-something."""
    rest = variable.removeprefix(ENV_PREFIX)
    return bool(_SERVICE_LINK.fullmatch(rest)) or (rest.endswith("PORT") and "://" in text)
