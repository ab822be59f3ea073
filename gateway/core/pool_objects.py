"""Priorities of inference objectives, and rewrites of model names, as objects of InferencePools have them."""

import zlib
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from gateway.core.worker import ServedModel

MAX_WEIGHT: Final = 1_000_000
KEY_BYTES: Final = 1 << 16
"""Bytes of a request that choose between weighted models."""


@dataclass(frozen=True, slots=True)
class WeightedModels:
    """Models that share requests; `ends` are their weights, added up."""

    models: tuple[str, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, targets: Sequence[tuple[str, int | None]]) -> "WeightedModels":
        """Make it of models with their weights: equal ones where none is given, and no requests for a model
        without one beside others. Raises ValueError."""
        is_weighted = any(weight is not None for _, weight in targets)
        weighted = [(name, weight if is_weighted else 1) for name, weight in targets]
        used = [(name, weight) for name, weight in weighted if weight is not None]
        if not used:
            raise ValueError("has no target")
        if bad := [weight for _, weight in used if not 1 <= weight <= MAX_WEIGHT]:
            raise ValueError(f"has the weight {bad[0]}; weights are 1 to {MAX_WEIGHT:,}")
        return cls(tuple(name for name, _ in used), tuple(accumulate(weight for _, weight in used)))

    @property
    def weights(self) -> dict[str, int]:
        """The weight of each model."""
        found: dict[str, int] = {}
        for name, start, end in zip(self.models, (0, *self.ends), self.ends, strict=False):
            found[name] = found.get(name, 0) + end - start
        return found

    def choose(self, key: bytes) -> str:
        """The same model for the same key."""
        return self.models[bisect(self.ends, zlib.crc32(key[:KEY_BYTES]) % self.ends[-1])]


@dataclass(frozen=True, slots=True)
class ModelRewrites:
    """Models in place of those that clients name: by name, and for all other names."""

    by_name: Mapping[str, WeightedModels]
    others: WeightedModels | None = None

    def target(self, model: str, key: bytes) -> str:
        """The model for a request; of weighted ones, the one for its `key`."""
        found = self.by_name.get(model, self.others)
        return model if found is None else found.choose(key)

    def listed(self, served: Mapping[str, ServedModel]) -> dict[str, ServedModel]:
        """The served models, with rewritten names for which one is served."""
        found = {
            name: next((served[model] for model in models.models if model in served), None)
            for name, models in self.by_name.items()
        }
        return dict(sorted({**{name: one for name, one in found.items() if one}, **served}.items()))


def merged(every: Iterable[ModelRewrites]) -> ModelRewrites | None:
    """All rewrites, of which the first one for a name counts; None without any."""
    by_name: dict[str, WeightedModels] = {}
    others: WeightedModels | None = None
    for each in every:
        by_name = {**each.by_name, **by_name}
        others = others or each.others
    return ModelRewrites(by_name, others) if by_name or others else None


@dataclass(slots=True, eq=False)
class PoolObjects:
    """Objectives, higher ones first, and rewrites in use; both are replaced when an object changes."""

    objectives: Mapping[str, int] = field(default_factory=dict)
    rewrites: ModelRewrites | None = None
