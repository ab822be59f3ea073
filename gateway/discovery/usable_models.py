"""Bounds on what an endpoint reports about itself: names of models, and ranks. Pure.

A worker is not trusted with the log, the metrics page or the event loop of its gateway: names appear in all
of them, and each rank is a worker. Unusable names are ignored; more ranks than any engine has mean that the
answer is wrong as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.engine import ModelInfo

MAX_MODELS = 4096
"""Names per endpoint, adapters included. vLLM's own pages of adapters have hundreds."""
MAX_NAME_CHARS = 1024
"""Characters of a name, a root or a parent, which may be paths."""
MAX_RANKS = 1024
"""Data-parallel ranks per endpoint; the largest deployments have some hundred."""
MAX_SERVED = 1 << 16
"""Names times ranks: entries that are indexed by model when the endpoint joins, in some 0.1 s."""


@dataclass(frozen=True, slots=True)
class UsableModels:
    """Usable models of an endpoint; `refusal` explains why others are ignored, and is empty if none are."""

    models: tuple[ModelInfo, ...]
    refusal: str = ""


def usable(models: Sequence[ModelInfo], num_ranks: int = 1) -> UsableModels:
    most = min(MAX_MODELS, max(MAX_SERVED // max(num_ranks, 1), 1))
    good: list[ModelInfo] = []
    seen: set[str] = set()
    num_bad = num_again = 0
    for model in models:
        if model.id in seen:
            num_again += 1
        elif not _is_name(model.id) or not all(map(_may_be_name, (model.root, model.parent))):
            num_bad += 1
        elif len(good) < most:
            seen.add(model.id)
            good.append(model)
    left = len(models) - len(good) - num_bad - num_again
    faults = [
        f"{num_bad} have a name that is empty, longer than {MAX_NAME_CHARS} characters or not printable"
        if num_bad
        else "",
        f"{num_again} are listed twice" if num_again else "",
        f"{left} are over the limit of {most} for one endpoint" if left else "",
    ]
    return UsableModels(tuple(good), "; ".join(filter(None, faults)))


def ranks_refusal(num_ranks: int) -> str | None:
    """Explain why an endpoint with so many ranks is rejected; None if it is not."""
    if num_ranks <= MAX_RANKS:
        return None
    return f"declares {num_ranks} data-parallel ranks, at most {MAX_RANKS} are used of one endpoint"


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _may_be_name(name: str | None) -> bool:
    return not name or _is_name(name)
