"""A tokenizer for each model that workers serve, while they come and go; and for which workers it holds.

    a root is served ─ its table, else its root ─► shelf (places, threads) ──┐
    a worker joins ─ 20 prompts of its own /tokenize ────────────────────────┴─► verdicts ─► prompts, fleet

Nothing here is waited for by a request: until a tokenizer is loaded, its model's workers are asked.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gateway.config.models import ModelTable
from gateway.core.decision import Prompt
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.core.requests.request import InferenceRequest
from gateway.core.worker import Worker, WorkerId
from gateway.models.hub import Places
from gateway.models.loader import RETRY_S, Shelf, Shelved, Source, State
from gateway.models.prompt_source import ANY_MODEL, PromptSource
from gateway.models.token_parity import Agreement, Ask
from gateway.models.token_source import Judged, Maker, Verdict, verdicts_of
from gateway.tokenization.base import Renderer
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.unavailable import Nobody

log = logging.getLogger("kvgate.models")

MAX_RETRY_S = 3600.0
"""Between two looks at a worker that does not tokenize, or makes other tokens: some templates tell the day,
and its day may begin at another time."""
MAX_AT_ONCE = 8
"""Workers that are asked at the same time: hundreds may join at once."""

REPAIR = 'put it right, or give its table renderer = "worker" to have its workers asked'

Post = Callable[[str, str, object], Awaitable[bytes | None]]
"""Posts a body to a path of an endpoint; None where that is not answered with 200."""
Start = Callable[[str, Coroutine[None, None, None]], object]


class Answers(Protocol):
    """What workers made, kept (`prompts.WorkerTokenizer`)."""

    def forget(self, url: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """A worker's tokens as `kvgate check` tells of them; `fault` is what makes the check fail."""

    note: str
    fault: str | None


@dataclass(slots=True, eq=False)
class Entry:
    """A root that workers serve. `judged` is by their URLs; so are the `verdicts` that follow from it."""

    root: str
    shelved: Shelved
    names: set[str] = field(default_factory=set)
    judged: dict[str, Judged] = field(default_factory=dict)
    maker: Maker = Maker.REMOTE
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


class Catalog:
    """`any_model` is a directory for all models whose table names none."""

    def __init__(
        self,
        prompts: PromptSource,
        fleet: Fleet,
        *,
        tables: Mapping[str, ModelTable] | None = None,
        any_model: str = "",
        places: Places | None = None,
        probes: bool = True,
    ) -> None:
        """Loads what is given and lies here. Raises ConfigError for `any_model` alone: of several models
        one that is broken must not keep the others down."""
        self._prompts = prompts
        self._fleet = fleet
        self._tables = tables or {}
        self._any_model = any_model
        self._places = places or Places()
        self._probes = probes
        self._shelf = Shelf(self._places, prompts.prepare)
        self._entries: dict[str, Entry] = {}
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)
        self._start: Start | None = None
        self._post: Post | None = None
        self._answers: Answers | None = None
        self._load_given()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __repr__(self) -> str:
        return f"Catalog({len(self._entries)} roots, {len(self._shelf)} tokenizers)"

    def open(self, start: Start, post: Post, answers: Answers) -> None:
        """From now on workers may join; `start` runs a task in the background."""
        self._start, self._post, self._answers = start, post, answers

    def close(self) -> None:
        self._shelf.close()
        self._places.close()

    # workers -----------------------------------------------------------------------------------

    def joined(self, workers: Sequence[Worker]) -> None:
        """Those of one endpoint, which are one server."""
        worker = workers[0]
        assert self._start is not None and self._answers is not None
        self._answers.forget(worker.url)
        for root in _roots(worker):
            entry = self._entry(root, worker)
            self._settle(entry)
            self._start(f"tokens of {root} at {worker.id}", self._learn(entry, worker))

    def left(self, worker: WorkerId) -> None:
        """Before the fleet forgets it."""
        member = self._fleet.get(worker)
        if member is None:
            return
        for entry in self:
            if entry.judged.pop(member.worker.url, None) is not None:
                self._settle(entry)

    def renamed(self) -> None:
        """Workers answer to other names than they did; their roots are the same."""
        for member in self._fleet:
            for root in _roots(member.worker):
                self._entry(root, member.worker)
        self._tell()

    def has_tokenizer(self, model: str) -> bool:
        """Whether prompts for what is served by this name are tokenized here."""
        return any(entry.maker is Maker.LOCAL and model in entry.names for entry in self)

    async def look(self, worker: Worker, ask: Ask) -> list[Sight]:
        """All that can be known of a worker's models at once, for `kvgate check`."""
        entries = [self._entry(root, worker) for root in _roots(worker)]
        for entry in entries:
            await self._shelf.have(entry.shelved)
            await self._judge(entry, worker, ask)
        return [_sight(entry, worker.url) for entry in entries]

    async def _learn(self, entry: Entry, worker: Worker) -> None:
        """Until there is a tokenizer, or it is known that there is none, and the worker has shown its own."""
        assert self._post is not None
        retry_s = RETRY_S
        while self._is_here(worker):
            await self._shelf.have(entry.shelved)
            self._settle(entry)
            await self._judge(entry, worker, partial(self._post, worker.url))
            judged = entry.judged.get(worker.url)
            is_settled = judged is None or (judged.judgement.made and not judged.judgement.difference)
            if is_settled and not entry.shelved.is_passing:
                return
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _judge(self, entry: Entry, worker: Worker, ask: Ask) -> None:
        if self._probes:
            renderer, name = entry.shelved.renderer, _name_of(entry.root, worker)
            agreement = Agreement(
                partial(self._ours, renderer),
                lambda model, ids: renderer.decode(ids) if renderer else None,
                with_chats=renderer is None or renderer.tells_chats,
            )
            async with self._turn:
                judgement = await agreement.judge(name, ask)
            if self._post is not None and not self._is_here(worker):
                return
            entry.judged[worker.url] = Judged(judgement, int(time.time() // 86400))
        self._settle(entry)

    def _ours(self, renderer: Renderer | None, request: InferenceRequest) -> Prompt:
        try:
            return self._prompts.made_by(renderer, request) if renderer else Prompt()
        except PromptError:
            return Prompt()

    def _is_here(self, worker: Worker) -> bool:
        """And the same as when it joined, but for its names."""
        member = self._fleet.get(worker.id)
        return member is not None and replace(member.worker, served=worker.served) == worker

    # what follows ------------------------------------------------------------------------------

    def _settle(self, entry: Entry) -> None:
        shelved, before = entry.shelved, entry.verdicts
        entry.maker, entry.verdicts = verdicts_of(
            entry.judged, has_local=shelved.renderer is not None, is_broken=shelved.state is State.BROKEN
        )
        for url, verdict in entry.verdicts.items():
            if before.get(url) != verdict:
                is_bad = verdict.maker is not Maker.LOCAL and shelved.renderer is not None
                level = logging.WARNING if is_bad else logging.INFO
                log.log(
                    level, "tokens of %s at %s: %s, %s", entry.root, url, verdict.maker.value, verdict.why
                )
        if before != entry.verdicts and self._answers:
            self._answers.forget()
        self._tell()

    def _tell(self) -> None:
        """Who tokenizes what, and for which workers that holds, to those who decide."""
        local: dict[str, Renderer | None] = {}
        if self._any_model:
            local[ANY_MODEL] = self._shelf.get(_given(self._any_model)).renderer
        for name, served in self._fleet.served().items():
            if entry := self._entries.get(served.root):
                local[name] = _maker(entry)
        self._prompts.set_all(local)
        self._fleet.set_apart(
            {
                (member.worker.id, entry.root)
                for entry in self._entries.values()
                for member in self._fleet
                if (verdict := entry.verdicts.get(member.worker.url)) and verdict.maker is not entry.maker
            }
        )

    # tokenizers --------------------------------------------------------------------------------

    def _load_given(self) -> None:
        """What lies here, before there is traffic; a hub is asked once its model is served."""
        for model, table in self._tables.items():
            source = self._source(model, [])
            if table.tokenizer and (table.tokenizer[0] in "/.~" or Path(table.tokenizer).is_dir()):
                self._shelf.read(self._shelf.get(source))
        if self._any_model:
            shelved = self._shelf.get(_given(self._any_model))
            self._shelf.read(shelved, is_needed=True)
            if shelved.state is State.BROKEN:
                raise ConfigError(f"tokenizer: {shelved.why}")
        self._tell()

    def _entry(self, root: str, worker: Worker) -> Entry:
        entry = self._entries.get(root)
        if entry is None:
            names = [served.name for served in worker.served if served.root == root]
            entry = self._entries[root] = Entry(root, self._shelf.get(self._source(root, names)))
        entry.names.update(served.name for served in worker.served if served.root == root)
        return entry

    def _source(self, root: str, names: Iterable[str]) -> Source:
        table = next((self._tables[name] for name in (*names, root) if name in self._tables), ModelTable())
        name = table.tokenizer or self._any_model
        if table.template or table.renderer != "auto":
            return Source(name or root, table.template, table.renderer, bool(name))
        return _given(name) if name else Source(root)

    # people ------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Each model's tokenizer, and by whom the prompts for each of its workers are tokenized."""
        used = {entry.shelved for entry in self}
        idle = [each for each in self._shelf if each not in used and each.state is not State.SOUGHT]
        return [_told(entry) for entry in self] + [
            {"model": self._shown(shelved.source), **shelved.describe(), "workers": []} for shelved in idle
        ]

    def tokens_at(self, url: str) -> list[dict[str, str]]:
        """By whom the prompts for a worker are tokenized, for each of its models."""
        return [
            {"model": entry.root, "way": verdict.maker.value, "why": verdict.why}
            for entry in self
            if (verdict := entry.verdicts.get(url))
        ]

    def _shown(self, source: Source) -> str:
        return "all models" if source == _given(self._any_model) else source.name


def _given(name: str) -> Source:
    return Source(name, is_given=True)


def _roots(worker: Worker) -> list[str]:
    return list(dict.fromkeys(served.root for served in worker.served))


def _name_of(root: str, worker: Worker) -> str:
    """A name by which the worker answers for the root itself, else for an adapter of it."""
    names = [served for served in worker.served if served.root == root]
    return next((served for served in names if served.adapter is None), names[0]).name


def _maker(entry: Entry) -> Renderer | None:
    """Who makes the prompts here; None where a worker does."""
    shelved = entry.shelved
    if entry.maker is Maker.LOCAL:
        return shelved.renderer
    if entry.maker is Maker.REMOTE:
        return None
    if shelved.state is State.BROKEN:
        return Nobody(f"its tokenizer is broken, see /admin/tokenizer: {shelved.why}")
    return Nobody("no tokenizer is found for it, and no worker's /tokenize answers")


def _sight(entry: Entry, url: str) -> Sight:
    shelved, verdict, judged = entry.shelved, entry.verdicts.get(url), entry.judged.get(url)
    way, why = (verdict.maker.value, verdict.why) if verdict else (entry.maker.value, "nothing was compared")
    note = f"tokens of {entry.root}: {way}, {why}"
    if shelved.renderer is not None:
        note += f"; its tokenizer ({shelved.renderer.kind}) is from {shelved.where}"
    elif shelved.why and shelved.why not in note:
        note += f"; {shelved.why}"
    if shelved.state is State.BROKEN:
        return Sight(note, f"the tokenizer of {entry.root} is broken: {shelved.why}; {REPAIR}")
    difference = judged.judgement.difference if judged and shelved.source.is_given else None
    return Sight(note, difference)


def _told(entry: Entry) -> dict[str, Any]:
    workers = [
        {"worker": url, "way": verdict.maker.value, "why": verdict.why}
        for url, verdict in entry.verdicts.items()
    ]
    return {"model": entry.root, "way": entry.maker.value, **entry.shelved.describe(), "workers": workers}
