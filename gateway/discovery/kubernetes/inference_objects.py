"""InferenceObjectives and InferenceModelRewrites of a pool: the priorities and rewrites that they give. Pure.

An exact match goes before a rule without matches; of several, the oldest object's counts, and within one
object the first. An object of another pool, or one that is being deleted, gives nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.pool_objects import ModelRewrites, WeightedModels
from gateway.discovery.kubernetes.api_objects import (
    InferenceModelRewrite,
    InferenceObjective,
    PoolReference,
    RewriteRule,
)

POOL_GROUP = "inference.networking.k8s.io"
MAX_PRIORITY = 2**31
MAX_MODEL_CHARS = 256


@dataclass(frozen=True, slots=True)
class FoundRewrites:
    """Rewrites of a pool, and why one of its rules counts for less; empty where none does."""

    rewrites: ModelRewrites
    refusal: str = ""


def priorities(objects: Iterable[InferenceObjective], pool: str) -> dict[str, int]:
    """Priorities by name of the objective, as given: higher goes first, 0 where none is given."""
    found = {}
    for each in objects:
        priority = each.spec.priority or 0
        is_gone = each.metadata.deletion_timestamp
        if not is_gone and _is_of(each.spec.pool_ref, pool) and abs(priority) <= MAX_PRIORITY:
            found[each.metadata.name] = priority
    return dict(sorted(found.items()))


def model_rewrites(objects: Iterable[InferenceModelRewrite], pool: str) -> FoundRewrites:
    """Rewrites of model names by all objects of a pool."""
    by_name: dict[str, WeightedModels] = {}
    others: WeightedModels | None = None
    refusals = []
    own = [o for o in objects if _is_of(o.spec.pool_ref, pool) and not o.metadata.deletion_timestamp]
    for each in sorted(own, key=lambda o: (o.metadata.creation_timestamp, o.metadata.name)):
        for rule in each.spec.rules or ():
            try:
                names, targets = _read(rule)
            except ValueError as exc:
                refusals.append(f"InferenceModelRewrite {each.metadata.name}: a rule {exc}")
                continue
            for name in names:
                by_name.setdefault(name, targets)
            if not rule.matches:
                others = others or targets
    return FoundRewrites(ModelRewrites(by_name, others), refusals[0] if refusals else "")


def _is_of(reference: PoolReference | None, pool: str) -> bool:
    """Return True if this is the pool; the API fills in group and kind where they are left out."""
    if reference is None:
        return False
    group, kind = reference.group or POOL_GROUP, reference.kind or "InferencePool"
    return (reference.name, group, kind) == (pool, POOL_GROUP, "InferencePool")


def _read(rule: RewriteRule) -> tuple[list[str], WeightedModels]:
    """Matched names of a rule, and its targets. Raises ValueError with the reason."""
    names = [_name(match.model.value) for match in rule.matches or () if match.model]
    kinds = {match.model.type for match in rule.matches or () if match.model} - {None, "", "Exact"}
    if kinds or len(names) != len(rule.matches or ()):
        raise ValueError("matches in a way that is not known; kvgate compares whole names (Exact)")
    return names, WeightedModels.of([(_name(each.model_rewrite), each.weight) for each in rule.targets or ()])


def _name(text: str) -> str:
    if not text or len(text) > MAX_MODEL_CHARS or not text.isprintable():
        raise ValueError(f"names a model by '{text[:40]}'; names have 1 to {MAX_MODEL_CHARS} characters")
    return text
