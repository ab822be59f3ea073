"""Names at a worker that no request may use, because its engine does not do what the request asks. Pure.

salt      where tenants' requests are salted (`tenancy/auth/tenant_salt.py`), an engine that drops
          `cache_salt` would let them time each other. A proof by the worker itself
          (`discovery/salt_prober.py`) decides; without one the engine's version

          On some routes an engine drops the salt although it obeys it on others: these are left out

name      an engine that answers for any model name would answer a name that it lists and does not serve from
          another model. Its first model keeps its name (`discovery/name_prober.py`)

Such a worker is not eligible under these names, as if it did not serve them: the fleet leaves them out when
it indexes its models, so that a request costs nothing more.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol, TypeAlias

from gateway.core.errors import NotSupported
from gateway.core.route_table import TABLE, Salt, paths
from gateway.core.worker import ServedModel, Worker

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(.*)", re.DOTALL)
UNCACHED: Final = paths(route for route in TABLE if route.salt is Salt.NO_CACHE)
"""Routes that read no cache, and need no salt."""
_BEFORE: Final = re.compile(r"[.\-_]?(a|b|c|rc|alpha|beta|pre|preview|dev)\d*", re.IGNORECASE)


class UnusableCause(Enum):
    SALT = "salt"
    NAME = "name"


class Isolation(Enum):
    APART = "apart"
    SHARED = "shared"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SaltProof:
    """A worker's own proof that it keeps prompts of different salts apart; `reason` is for operators."""

    isolation: Isolation
    reason: str


@dataclass(frozen=True, slots=True)
class NameProof:
    """An endpoint's own proof that it answers for any name, always from the model `root`; `reason` is for
    operators."""

    root: str
    reason: str


CacheOwner: TypeAlias = tuple[str, int]
"""URL of an endpoint, and the DP rank: each rank has a cache."""


class EngineTraits(Protocol):
    """The attributes of an engine (`engine.py`) that eligibility depends on."""

    salts_from: tuple[int, ...] | None
    salted_paths: frozenset[str] | None
    takes_lists: bool
    loads_by_name: bool


@dataclass(frozen=True, slots=True)
class UnusableName:
    """Why a name of a worker is not used: `reason` is for operators."""

    cause: UnusableCause
    served: ServedModel
    reason: str

    def error(self, model: str) -> NotSupported:
        """Return the error for a request for `model`, which no other worker serves."""
        if self.cause is UnusableCause.NAME:
            return NotSupported(
                f"the workers that list '{model}' would answer from another model; choose another model",
                param="model",
            )
        message = (
            f"the workers of '{model}' cannot isolate the cached prompts of tenants; choose another model"
        )
        return NotSupported(message, param="model")


def not_chosen(path: str, served: ServedModel) -> NotSupported:
    """Return the error for an adapter's request on a route where every worker answers from the base model, or
    a tenant's on a route where every worker drops the salt."""
    if served.adapter is None:
        return NotSupported(
            f"the workers of '{served.name}' cannot isolate the cached prompts of tenants on {path}; use a "
            f"route of {', '.join(sorted((served.paths or frozenset()) - UNCACHED))}",
            param="model",
        )
    return NotSupported(
        f"{path} cannot reach the adapter '{served.name}': the workers that have it answer there from its "
        f"base model '{served.parent}'; use a route of {', '.join(sorted(served.paths or ()))}",
        param="model",
    )


class Eligibility:
    """Judges which names of a worker requests may use. `needs_salt`: each request carries its tenant's salt.
    `proofs` belong to ranks, `answers_any` to endpoints that answer for any model name."""

    def __init__(self, engines: Mapping[str, EngineTraits], *, needs_salt: bool = False) -> None:
        self._engines = engines
        self.needs_salt = needs_salt
        self.proofs: dict[CacheOwner, SaltProof] = {}
        self.answers_any: dict[str, NameProof] = {}

    def __repr__(self) -> str:
        return f"Eligibility({len(self._engines)} engines, needs_salt={self.needs_salt})"

    def unusable(self, worker: Worker) -> Sequence[UnusableName]:
        """The names that the worker lists and no request may use."""
        reason = self._salt_refusal(worker) if self.needs_salt else None
        if reason is not None:
            return [UnusableName(UnusableCause.SALT, served, reason) for served in worker.served]
        proof = self.answers_any.get(worker.url)
        if proof is None:
            return ()
        return [
            UnusableName(UnusableCause.NAME, served, proof.reason)
            for served in worker.served
            if served.root != proof.root
        ]

    def takes_lists(self, engine: str) -> bool:
        """False where a completion's prompt must be one text."""
        traits = self._engines.get(engine)
        return traits is None or traits.takes_lists

    def takes_salt(self, worker: Worker) -> bool:
        """True if the worker keeps prompts of different salts apart."""
        return self._salt_refusal(worker) is None

    def loads_by_name(self, engine: str) -> bool:
        """True where a made-up name would unload the model that is served."""
        traits = self._engines.get(engine)
        return traits is not None and traits.loads_by_name

    def reachable(self, worker: Worker, served: ServedModel) -> ServedModel:
        """The name with the routes where a request may use it."""
        engine = self._engines.get(worker.engine)
        salted = engine.salted_paths if engine is not None and self.needs_salt else None
        if salted is None:
            return served
        allowed = salted | UNCACHED
        return replace(served, paths=allowed if served.paths is None else served.paths & allowed)

    def _salt_refusal(self, worker: Worker) -> str | None:
        """Why the worker gets no salted request; None if it may."""
        proof, engine = self.proofs.get((worker.url, worker.dp_rank)), self._engines.get(worker.engine)
        if proof is not None and proof.isolation is Isolation.SHARED:
            return proof.reason
        if proof is not None and proof.isolation is Isolation.APART:
            return None
        if engine is None or is_from(engine.salts_from, worker.version):
            return None
        return _of_salts(worker, engine.salts_from)


def is_from(first: tuple[int, ...] | None, version: str | None) -> bool:
    """True if `version` is `first` or newer: never where `first` is None, always where it is ().

    An unreadable version counts as older, a pre-release as older than its release."""
    if not first:
        return first is not None
    found = _VERSION.match(version or "")
    if found is None:
        return False
    numbers = tuple(int(number) for number in found.groups()[:3])
    return numbers > first or (numbers == first and not _BEFORE.match(found[4]))


def summary(unusable: Sequence[UnusableName], max_named: int = 8) -> str:
    """In a line of the log."""
    names = [each.served.name for each in unusable]
    more = f" and {len(names) - max_named} more" if len(names) > max_named else ""
    return f"{', '.join(names[:max_named])}{more} ({unusable[0].reason})"


def _of_salts(worker: Worker, first: tuple[int, ...] | None) -> str:
    if first is None:
        return f"{worker.engine} has no cache_salt, which --tenant-salt-file needs"
    wanted = ".".join(map(str, first))
    which = f"{worker.engine} ignores cache_salt before version {wanted}"
    return f"{which}, which --tenant-salt-file needs; this is version {(worker.version or 'unknown')[:64]}"
