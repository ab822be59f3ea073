"""What another configuration changes, and what of it can be taken now. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.config import Config
from gateway.config.live import LIVE, SECRET
from gateway.config.worker_specs import parse_spec, spec_of, specs_of
from gateway.core.errors import ConfigError

MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two configurations: fields that can be taken now (`live`), and those that need a restart. Workers
    are named as `parse_spec` reads them."""

    old: Config
    new: Config
    live: Sequence[str]
    restart: Sequence[str]
    added: Sequence[str]
    dropped: Sequence[str]

    def applied_to(self, config: Config) -> Config:
        """One in use, with what can be taken."""
        return msgspec.structs.replace(config, **{name: getattr(self.new, name) for name in self.live})

    def lines(self) -> Iterator[str]:
        """What changes, for the log: no secrets."""
        for name in (*self.live, *self.restart):
            yield f"{name}: {_shown(name, self.old)} -> {_shown(name, self.new)}"


def compare(old: Config, new: Config) -> Difference:
    """Raises ConfigError for workers that cannot be."""
    names = [each for each in Config.__struct_fields__ if getattr(old, each) != getattr(new, each)]
    before, after = _specs(old), _specs(new)
    return Difference(
        old,
        new,
        live=[name for name in names if name in LIVE],
        restart=[name for name in names if name not in LIVE],
        added=[spec for spec in after if spec not in before],
        dropped=[spec for spec in before if spec not in after],
    )


def _specs(config: Config) -> list[str]:
    try:
        return [spec_of(*parse_spec(spec)) for spec in specs_of(config)]
    except ValueError as exc:
        raise ConfigError(f"worker: {exc}") from exc


def _shown(name: str, config: Config) -> str:
    if name in SECRET:
        return "(not shown)"
    value: Any = getattr(config, name)
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
