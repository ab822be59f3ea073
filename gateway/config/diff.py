"""The difference of two configurations: what a reload changes, and what waits for a restart. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gateway.config import Config, by_key, replaced
from gateway.config.options import Option
from gateway.config.worker_specs import parse_spec, spec_of, specs_of
from gateway.core.errors import ConfigError

MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """The difference of two configurations: keys of options that are live, and of those that need a restart.
    Workers are written as `parse_spec` reads them."""

    old: Config
    new: Config
    live: Sequence[str]
    restart: Sequence[str]
    added: Sequence[str]
    dropped: Sequence[str]

    def applied_to(self, config: Config) -> Config:
        """Return the configuration in use with the live changes applied."""
        return replaced(config, **{key: by_key()[key].of(self.new) for key in self.live})

    def lines(self) -> Iterator[str]:
        """The changes as log lines, without secrets."""
        for key in (*self.live, *self.restart):
            yield f"{key}: {_shown(by_key()[key], self.old)} -> {_shown(by_key()[key], self.new)}"


def compare(old: Config, new: Config) -> ConfigDiff:
    """Compare two configurations. Raises ConfigError for a worker's URL that is not valid."""
    changed = [each for each in by_key().values() if each.of(old) != each.of(new)]
    before, after = _specs(old), _specs(new)
    return ConfigDiff(
        old,
        new,
        live=[each.key for each in changed if each.live],
        restart=[each.key for each in changed if not each.live],
        added=[spec for spec in after if spec not in before],
        dropped=[spec for spec in before if spec not in after],
    )


def _specs(config: Config) -> list[str]:
    try:
        return [spec_of(*parse_spec(spec)) for spec in specs_of(config)]
    except ValueError as exc:
        raise ConfigError(f"worker: {exc}") from exc


def _shown(option: Option, config: Config) -> str:
    if option.is_secret:
        return "(not shown)"
    text = msgspec.json.encode(option.of(config)).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
