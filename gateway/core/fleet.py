"""All known workers, and which of them are eligible for a model now."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gateway.core.eligibility import Eligibility, UnusableName, not_chosen
from gateway.core.errors import InvalidRequest, NoWorker, UnknownModel
from gateway.core.event_stream import StreamState
from gateway.core.hit_rule import PLAIN, HitRule
from gateway.core.panic import NO_WORKERS, LateWorkers
from gateway.core.pd_pairs import PairKind, kind_of
from gateway.core.rendering import VLLM, Rendering
from gateway.core.slow_start import SlowStart
from gateway.core.speed import TYPICAL, Speed
from gateway.core.spelling import shortened
from gateway.core.worker import NOT_REPORTED, ReportedLoad, Role, ServedModel, Worker, WorkerId


@dataclass(slots=True, eq=False)
class Member:
    """A worker in the fleet, with its changing state.

    `stream` is None where it has no events, `confidence` the share of its overlaps that counts
    (`observability/verification/accuracy.py`), `stays_s` the lifetime of an unused block in its cache.
    `is_draining`, `ejected` (the reason), `is_busy` (it just rejected a request because it is saturated) and
    `slow_start` limit its requests; the fleet sets them. `is_late`: its probes time out, and it is up only
    while other signs of life come; `is_accepting`: its latest connection was accepted."""

    worker: Worker
    is_up: bool = True
    reported: ReportedLoad = NOT_REPORTED
    stream: StreamState | None = None
    num_failures: int = 0
    confidence: float = 1.0
    speed: Speed = TYPICAL
    stays_s: float = math.inf
    is_draining: bool = False
    ejected: str | None = None
    is_busy: bool = False
    slow_start: SlowStart | None = None
    is_late: bool = False
    is_accepting: bool = True

    @property
    def is_open(self) -> bool:
        """True if the worker is up and not draining."""
        return self.is_up and not self.is_draining

    @property
    def state(self) -> str:
        """The lifecycle state in one word; see docs/concepts/workers.md."""
        if not self.is_open:
            return "draining" if self.is_draining else "down"
        if self.ejected is not None:
            return "ejected"
        return "active" if self.slow_start is None else "slow_start"


STATES: Final[tuple[str, ...]] = ("slow_start", "active", "draining", "ejected", "down")
"""States of a worker that has joined; before that it is joining, after its removal gone."""

MAX_GROUPS: Final = 8
"""Groups of one name that prompts are hashed and looked up for, each by itself; workers of others are
routed by load."""


class HashGroup(NamedTuple):
    """Workers of one group see the same block hashes for a request, and reuse as much of them; 0 means an
    unknown block size.

    A fleet has one object for each, so that `is` compares them.
    """

    root: str
    adapter: str | None
    block_size: int
    rendering: Rendering = VLLM
    hit_rule: HitRule = PLAIN


@dataclass(frozen=True, slots=True)
class EligibleWorker:
    """A worker that can answer for a model, and under which of its names; `kind` where its cache can go to
    others, or come from them. Kinds and groups are one object each in a fleet. `is_apart`: it makes other
    tokens of a prompt than those that it is routed by."""

    member: Member
    served: ServedModel
    group: HashGroup
    kind: PairKind | None = None
    is_apart: bool = False


class Fleet:
    """All known workers, by id and by model. `aliases` are names that clients may use, with the served name
    or root that each stands for; a name that some worker serves itself is no alias. `eligibility` says which
    names of a worker no request may use; `panic_percent` is the panic threshold (`core/panic.py`)."""

    def __init__(
        self,
        aliases: Mapping[str, str] | None = None,
        eligibility: Eligibility | None = None,
        panic_percent: float = 50.0,
    ) -> None:
        self.aliases: Mapping[str, str] = aliases or {}
        self.eligibility = eligibility
        self._unusable: dict[WorkerId, Sequence[UnusableName]] = {}
        self._differing: Set[tuple[WorkerId, str]] = frozenset()
        self._members: dict[WorkerId, Member] = {}
        self._by_model: dict[str, list[EligibleWorker]] = {}
        self._prefills: dict[str, list[EligibleWorker]] = {}
        self._bound: set[str] = set()
        self._called: dict[tuple[WorkerId, str], str] = {}
        self._translated: set[str] = set(self.aliases)
        self._limited: set[str] = set()
        self.has_text_only = False
        """True where some worker's engine takes no list as a prompt."""
        self._num_batches = 0
        self._served: Mapping[str, ServedModel] | None = None
        self.late = LateWorkers(panic_percent)
        self._aside: set[WorkerId] = set()
        """Workers that are draining, ejected, busy or in slow start; usually none, and no decision looks."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        up = sum(member.is_up for member in self)
        return f"Fleet({up} of {len(self)} up, models={sorted(self._by_model)})"

    def get(self, worker: WorkerId) -> Member | None:
        return self._members.get(worker)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Index models once for all workers that are added, dropped or renamed inside: an endpoint may have
        hundreds of ranks, and each name of each of them is indexed."""
        self._num_batches += 1
        try:
            yield
        finally:
            self._num_batches -= 1
            self._index_models()

    def add(self, worker: Worker) -> Member:
        """Add a worker, or replace what it said of itself when it joined before."""
        member = Member(worker)
        self._members[worker.id] = member
        self._aside.discard(worker.id)
        self.late.note(worker.id, is_down=False)
        self._index_models()
        return member

    def set_up(self, worker: WorkerId, is_up: bool, is_late: bool = False, is_accepting: bool = True) -> None:
        """Set the health of a worker by its probes: `is_late` where they time out."""
        if member := self.get(worker):
            member.is_up, member.is_late, member.is_accepting = is_up, is_late, is_accepting
            self.late.note(worker, is_down=is_late and not is_up)
            self._admit()

    def drain(self, worker: WorkerId, is_draining: bool) -> None:
        """Start a drain (the worker gets no new requests), or undo it."""
        if member := self.get(worker):
            member.is_draining = is_draining
            self._set_aside(member)

    def eject(self, worker: WorkerId, reason: str | None) -> None:
        """Eject a worker for a reason, or readmit it (None). It gets requests only if no other worker can."""
        if member := self.get(worker):
            member.ejected = reason
            self._set_aside(member)

    def set_busy(self, worker: WorkerId, is_busy: bool) -> None:
        """Send a worker that rejects requests none for now, unless no other worker can take them."""
        if member := self.get(worker):
            member.is_busy = is_busy
            self._set_aside(member)

    def set_slow_start(self, worker: WorkerId, slow_start: SlowStart | None) -> None:
        if member := self.get(worker):
            member.slow_start = slow_start
            self._set_aside(member)

    def peers(self, worker: WorkerId) -> Iterator[tuple[str, list[Member]]]:
        """Yield each model that a worker answers or prefills for, with all workers that do, itself too."""
        for table in (self._by_model, self._prefills):
            for model, known in table.items():
                members = [e.member for e in known]
                if any([member.worker.id == worker for member in members]):
                    yield model, members

    def is_last(self, worker: WorkerId) -> str | None:
        """A model of the worker that no other open, not ejected worker serves (or prefills); else None."""
        for model, members in self.peers(worker):
            others = [member for member in members if member.worker.id != worker]
            if not any(m.is_open and m.ejected is None for m in others):
                return model
        return None

    def serve(self, worker: WorkerId, served: tuple[ServedModel, ...]) -> Worker | None:
        """Replace the names that a worker serves, and keep its state; returns it as it is now."""
        member = self._members.get(worker)
        if member is None:
            return None
        member.worker = replace(member.worker, served=served)
        self._index_models()
        return member.worker

    def resize(self, worker: WorkerId, block_size: int) -> Worker | None:
        """Replace the block size of a worker, and keep its state; returns it as it is now."""
        member = self._members.get(worker)
        if member is None:
            return None
        member.worker = replace(member.worker, block_size=block_size)
        self._index_models()
        return member.worker

    def drop(self, worker: WorkerId) -> None:
        if self._members.pop(worker, None):
            self._aside.discard(worker)
            self.late.note(worker, is_down=False)
            self._index_models()

    def set_apart(self, apart: Set[tuple[WorkerId, str]]) -> None:
        """Workers, and roots of which they make other tokens: nothing is looked up for these."""
        if apart != self._differing:
            self._differing = apart
            self._index_models()

    def name_at(self, worker: Worker, model: str) -> str:
        """The name that chooses at `worker` what clients call `model`: an alias, or a name of the worker."""
        target = self.aliases.get(model)
        for name in (model,) if target is None else (model, target):
            if (called := self._called.get((worker.id, name))) is not None:
                return called
        if target is None or worker.find(model) is not None:
            return model
        if worker.find(target) is not None:
            return target
        meant = [served.name for served in worker.served if served.adapter is None and served.root == target]
        return meant[0] if meant else model

    def is_translated(self, model: str) -> bool:
        """True if some worker is asked for this model by another name (`name_at`)."""
        return model in self._translated

    def adapter_of(self, model: str, adapter: str | None) -> str | None:
        """The served name of an adapter that a request names as `adapter` beside `model`, its base, or as
        "base:adapter" in `model` alone; None where no worker serves it on this base."""
        if adapter is not None:
            return adapter if self._is_of(adapter, model) else None
        at = model.find(":")
        while at >= 0:
            if at and self._is_of(model[at + 1 :], model[:at]):
                return model[at + 1 :]
            at = model.find(":", at + 1)
        return None

    def _is_of(self, adapter: str, base: str) -> bool:
        """True if the adapter is served on this base, or on any where that is empty."""
        known = self._by_model.get(adapter) or self._prefills.get(adapter) or ()
        names = {base, self.aliases.get(base, base)}
        served = [each.served for each in known if each.served.adapter == adapter]
        return any(not base or not names.isdisjoint((adapter, each.parent, each.root)) for each in served)

    def knows(self, model: str) -> bool:
        """True if some worker of the fleet, up or not, serves this name."""
        return model in self._by_model or model in self._prefills

    def served(self) -> Mapping[str, ServedModel]:
        """Every name that some worker of the fleet answers to, up or not, and aliases of these; the same
        object until the fleet changes."""
        if self._served is None:
            first = {
                name: known[0] for name, known in (*self._prefills.items(), *self._by_model.items()) if known
            }
            self._served = {name: first[name].served for name in sorted(first)}
        return self._served

    def eligible(
        self, model: str, exclude: Collection[WorkerId] = (), path: str = ""
    ) -> list[EligibleWorker]:
        """Workers that are up and serve `model`, on the route `path` where one is given.

        Raises UnknownModel if no known worker serves it, NotSupported if none does on that route, NoWorker if
        none that does is up.
        """
        known = self._by_model.get(model)
        if not known and (unusable := self._unusable_as(model)):
            raise unusable.error(model)
        if known is None:
            raise _unknown(model, list(self._by_model), len(self))
        if path and model in self._limited:
            known = _chosen_at(path, known)
        left = [e for e in known if e.member.is_up]
        if self.late.answering and (late := self.late.answering.get(model)):
            left = [e for e in known if e.member.is_up or e.member.worker.id in late]
        if exclude:
            left = [e for e in left if e.member.worker.id not in exclude]
        if self._aside:
            left = _taking(left)
        if not left:
            kind = "decode worker" if model in self._prefills else "worker"
            others = "; the others are draining" if any(e.member.is_draining for e in known) else ""
            raise NoWorker(f"no {kind} for '{model}' is up{others}", retry_after_s=RETRY_AFTER_S)
        return left

    def taking_lists(self, eligible: Sequence[EligibleWorker], model: str) -> list[EligibleWorker]:
        """The eligible workers with engines that take a list as a completion's prompt: it would end others.
        Raises InvalidRequest where none does."""
        judge = self.eligibility
        left = [e for e in eligible if judge is None or judge.takes_lists(e.member.worker.engine)]
        if eligible and not left:
            raise InvalidRequest(
                f"the workers of '{model}' accept one string as 'prompt', neither lists nor token ids; "
                "send one request per prompt",
                param="prompt",
            )
        return left

    def judge_again(self) -> None:
        """Apply what `eligibility` learned since the workers joined."""
        self._index_models()

    def unusable(self, worker: WorkerId) -> Sequence[UnusableName]:
        """Names of the worker that no request may use."""
        return self._unusable.get(worker, ())

    def _unusable_as(self, model: str) -> UnusableName | None:
        """Why no request for `model` goes anywhere, where some worker lists it, or what it is an alias of."""
        target = self.aliases.get(model, model)
        for some in self._unusable.values():
            for each in some:
                if each.served.name in (model, target) or each.served.root == target:
                    return each
        return None

    def has_prefills(self, model: str) -> bool:
        """True if the model has prefill workers, up or not."""
        return model in self._prefills

    def is_bound(self, model: str) -> bool:
        """True if some of the model's workers answer only prompts that another one has prefilled."""
        return model in self._bound

    def prefills(self, model: str, exclude: Collection[WorkerId] = ()) -> Sequence[EligibleWorker]:
        """Workers that are up and compute prompts for others."""
        known = self._prefills.get(model)
        if not known:
            return ()
        left = [e for e in known if e.member.is_up]
        if self.late.prefilling and (late := self.late.prefilling.get(model)):
            left = [e for e in known if e.member.is_up or e.member.worker.id in late]
        left = [e for e in left if e.member.worker.id not in exclude]
        return _taking(left) if self._aside else left

    def alone(self, eligible: Sequence[EligibleWorker], model: str) -> list[EligibleWorker]:
        """The eligible workers that answer without a prefill worker. Raises NoWorker."""
        left = [e for e in eligible if not e.member.worker.is_bound]
        if not left:
            why = f"no prefill worker for '{model}' is up that can compute this request"
            raise NoWorker(why, retry_after_s=RETRY_AFTER_S)
        return left

    def has_another(
        self, model: str, exclude: Iterable[WorkerId], path: str = "", is_up: bool = False
    ) -> bool:
        """True if a worker beside the excluded ones could answer for `model` now, on the route `path`;
        `is_up`: without those that are late."""
        known = self._by_model.get(model, ())
        if path and model in self._limited:
            known = [e for e in known if e.served.paths is None or path in e.served.paths]
        late = NO_WORKERS if is_up else self.late.answering.get(model, NO_WORKERS)
        left = [e.member for e in known if e.member.worker.id not in exclude]
        return any([member.is_open or member.worker.id in late for member in left])

    def is_ready(self, model: str | None) -> bool:
        """True if a worker for `model` (None: any worker) gets requests."""
        if model is None:
            return bool(self.late.answering) or any(member.is_open for member in self)
        known = self._by_model.get(model, ())
        return model in self.late.answering or any(e.member.is_open for e in known)

    def _admit(self) -> None:
        """Find the models in panic, after a change of workers."""
        if not self.late.is_empty:
            tables = (self._by_model, self._prefills)
            self.late.admit(*[[(m, [e.member for e in some]) for m, some in t.items()] for t in tables])

    def _set_aside(self, member: Member) -> None:
        is_apart = member.is_draining or member.ejected is not None or member.is_busy
        if is_apart or member.slow_start is not None:
            self._aside.add(member.worker.id)
        else:
            self._aside.discard(member.worker.id)
        self._admit()

    def _index_models(self) -> None:
        if self._num_batches:
            return
        self._by_model, self._prefills, self._bound, self._unusable = {}, {}, set(), {}
        self._called, self._translated, self._limited = {}, set(self.aliases), set()
        self._served = None
        judge = self.eligibility
        self.has_text_only = judge is not None and not all(judge.takes_lists(m.worker.engine) for m in self)
        groups: dict[HashGroup, HashGroup] = {}
        hashed: dict[str, set[HashGroup]] = {}
        kinds: dict[PairKind | None, PairKind | None] = {}
        for member in self:
            worker = member.worker
            kind = kind_of(worker)
            kind = kinds.setdefault(kind, kind)
            for served in self._usable(worker):
                is_apart = (worker.id, served.root) in self._differing
                size = 0 if is_apart else worker.block_size or 0
                group = HashGroup(served.root, served.adapter, size, worker.rendering, worker.hit_rule)
                known = hashed.setdefault(served.name, set())
                if len(known) < MAX_GROUPS:
                    known.add(group)
                elif group not in known:
                    group = HashGroup(served.root, served.adapter, 0, worker.rendering, worker.hit_rule)
                group = groups.setdefault(group, group)
                self._index_as(served.name, EligibleWorker(member, served, group, kind, is_apart))
        own = list(self._by_model)
        for alias in self.aliases:
            if alias not in own:
                self._index_alias(alias, own)
        self._admit()

    def _usable(self, worker: Worker) -> Sequence[ServedModel]:
        if self.eligibility is None:
            return worker.served
        if unusable := self.eligibility.unusable(worker):
            self._unusable[worker.id] = unusable
        left_out = {each.served.name for each in unusable}
        return [
            self.eligibility.reachable(worker, served)
            for served in worker.served
            if served.name not in left_out
        ]

    def _index_as(self, name: str, eligible: EligibleWorker) -> None:
        worker, served = eligible.member.worker, eligible.served
        there = self._by_model.setdefault(name, [])  # known, though no worker decodes for it
        if served.called is not None:
            self._called[worker.id, name] = served.called
            self._translated.add(name)
        if served.paths is not None:
            self._limited.add(name)
        if worker.role is not Role.PREFILL:
            there.append(eligible)
            if worker.is_bound:
                self._bound.add(name)
        if eligible.kind is not None and worker.role is not Role.DECODE:
            self._prefills.setdefault(name, []).append(eligible)

    def _index_alias(self, alias: str, own: Sequence[str]) -> None:
        """Each worker once, though it may serve the root by several names."""
        for name in own:
            both = (*self._by_model[name], *self._prefills.get(name, ()))
            for eligible in {id(each): each for each in both}.values():
                if self.name_at(eligible.member.worker, alias) == name:
                    self._index_as(alias, eligible)


def _chosen_at(path: str, known: Sequence[EligibleWorker]) -> list[EligibleWorker]:
    """The workers where the model is chosen on this route. Raises NotSupported where none is left."""
    left = [e for e in known if e.served.paths is None or path in e.served.paths]
    if known and not left:
        raise not_chosen(path, known[0].served)
    return left


def _taking(up: list[EligibleWorker]) -> list[EligibleWorker]:
    """The workers that may get a request: not draining; neither ejected nor busy, unless all are; in slow
    start only when due, while another one is past its slow start."""
    left = [e for e in up if not e.member.is_draining]
    left = [e for e in left if e.member.ejected is None] or left
    left = [e for e in left if not e.member.is_busy] or left
    if any(e.member.slow_start is None for e in left):
        left = [e for e in left if e.member.slow_start is None or e.member.slow_start.is_due]
    return left


RETRY_AFTER_S: Final = 2
"""Sent to clients when no worker is up: about the time of a health probe."""


def _unknown(model: str, known: list[str], num_workers: int) -> UnknownModel | NoWorker:
    if not num_workers:
        return NoWorker("no worker has joined yet", retry_after_s=RETRY_AFTER_S)
    names = shortened(sorted(known))
    return UnknownModel(f"the model '{model}' does not exist; known: {names}", param="model")
