"""Catalog of tokenizers: one for each model that workers serve, while they come and go, and its token
sources.

    a root is served ─ its table, else its root ─► loader (hub, threads) ────┐
    a worker joins ─ 20 prompts of its own /tokenize ────────────────────────┴─► sources ─► prompts, fleet

No request waits for this: until a tokenizer is loaded, its model's workers tokenize.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gateway.config.models import ModelTable
from gateway.core.decision import Prompt
from gateway.core.errors import ConfigError
from gateway.core.fleet import Fleet
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.worker import Worker, WorkerId
from gateway.models.hub import Hub
from gateway.models.loader import RETRY_S, Loader, LoadState, TokenizerEntry, TokenizerSource
from gateway.models.model_entry import ModelEntry, WorkerTokenReport, describe, report
from gateway.models.prompt_source import ANY_MODEL, PromptSource
from gateway.models.tokenizer_readings import compared_again, settle_reading
from gateway.models.worker_days import WorkerDays
from gateway.parity.comparison import ParityComparison, ParityResult
from gateway.parity.prober import Ask, Prober, compare, day_of
from gateway.parity.token_source import TokenSource, WorkerParity, choose_sources
from gateway.runtime.rate_limited_log import RateLimitedLog
from gateway.tokenization.base import Renderer
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from gateway.tokenization.tokenizer_class import USUAL_ADVICE
from gateway.tokenization.unavailable import Unavailable

log = logging.getLogger("kvgate.models")

MAX_RETRY_S = 3600.0
"""Seconds between two checks of a worker that does not tokenize, or makes other tokens: some templates print
the day, and a worker's day may begin at another time."""

UNSERVED_LOOK_S = 1.0

MAX_ROOTS = 64
"""Roots of one endpoint that get a tokenizer; its names may be many more, as adapters share a root. Prompts
for the others are routed by load."""
MAX_IDLE = 1024
"""Roots that are remembered at least before those that no worker serves any more are forgotten."""

Compare = Callable[[ParityComparison], Awaitable[ParityResult]]
"""Compares a worker's tokens with the local ones."""
Start = Callable[[str, Coroutine[None, None, None]], object]


class TokenCache(Protocol):
    """Cache of workers' tokens (`worker_tokenizer.WorkerTokenizer`)."""

    def forget(self, url: str | None = None) -> None: ...


class Catalog:
    """Tokenizers of all served models. `any_model` is a directory for all models without a table of their
    own."""

    def __init__(
        self,
        prompts: PromptSource,
        fleet: Fleet,
        *,
        tables: Mapping[str, ModelTable] | None = None,
        any_model: str = "",
        hub: Hub | None = None,
        probes: bool = True,
        zone: tzinfo | None = None,
    ) -> None:
        """Load the configured tokenizers that are on disk. Raises ConfigError for `any_model` alone: of
        several models a broken one must not keep the others down. `zone` is that of the workers' clocks,
        for templates that print the day; without it they are asked."""
        self._prompts = prompts
        self._fleet = fleet
        self._tables = tables or {}
        self._any_model = any_model
        self._hub = hub or Hub()
        self._probes = probes
        self._loader = Loader(self._hub, prompts.prepare)
        self._entries: dict[tuple[str, Rendering], ModelEntry] = {}
        self._is_due = False
        self._log = RateLimitedLog(log)
        self._days_by = partial(WorkerDays, is_fixed=zone is not None or not probes)
        self._days = self._days_by(self._day_of)
        prompts.zone = zone
        self._start: Start | None = None
        self._prober: Prober | None = None
        self._answers: TokenCache | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        prompts.refuse = self._refuse_later
        self._load_given()

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self._entries.values())

    def __repr__(self) -> str:
        return f"Catalog({len(self._entries)} roots, {len(self._loader)} tokenizers)"

    def open(self, start: Start, prober: Prober, answers: TokenCache) -> None:
        """Let workers join from now on; `start` runs a task in the background."""
        self._start, self._prober, self._answers = start, prober, answers
        with suppress(RuntimeError):  # no loop, as in tests
            self._loop = asyncio.get_running_loop()

    async def watch_days(self) -> None:
        """Ask workers for the day that their prompts have, after each quarter of an hour, without end."""
        await self._days.watch(self._served, self._settle)

    def close(self) -> None:
        self._loader.close()
        self._hub.close()

    # workers -----------------------------------------------------------------------------------

    def joined(self, workers: Sequence[Worker]) -> None:
        """Register the workers of one endpoint, which are one server."""
        worker = workers[0]
        assert self._start is not None and self._answers is not None
        self._answers.forget(worker.url)
        roots, all_roots = _roots(worker), {served.root for served in worker.served}
        if len(roots) < len(all_roots):
            self._log.warning(
                "worker %s serves %d roots: prompts of all but %d are routed by load",
                worker.url, len(all_roots), MAX_ROOTS,
            )  # fmt: skip
        for root, names in roots.items():
            entry = self._entry(root, names, worker)
            entry.workers.update(each.id for each in workers)
            self._settle(entry)
            gone = entry.gone[worker.url] = asyncio.Event()
            self._start(f"tokens of {root} at {worker.id}", self._learn(entry, worker, gone))

    def left(self, worker: WorkerId) -> None:
        """Drop a worker; call it before the fleet forgets it."""
        member = self._fleet.get(worker)
        if member is None:
            return
        url = member.worker.url
        for entry in [each for each in self if worker in each.workers or url in each.checked]:
            was_here = worker in entry.workers
            self._days.left(entry, url)
            entry.workers.discard(worker)
            if gone := entry.gone.pop(url, None):
                gone.set()
            if not entry.workers:
                entry.names.clear()  # the next workers of this root may serve it by others
            if entry.checked.pop(url, None) is not None:
                self._settle(entry)
            elif was_here:
                self._publish_soon()  # which rendering most workers of a name have

    def renamed(self) -> None:
        """Update the names that workers serve; their roots are unchanged."""
        for worker in {member.worker.url: member.worker for member in self._fleet}.values():
            for root, names in _roots(worker).items():
                self._entry(root, names, worker)
        self._publish_soon()

    def unserved(self) -> list[str]:
        """Models that a tokenizer is configured for, and that no worker serves: a misspelt name, mostly."""
        served = self._fleet.served()
        known = {*served, *(each.root for each in served.values())}
        return [name for name, table in self._tables.items() if table.tokenizer and name not in known]

    def has_tokenizer(self, model: str, rendering: Rendering = VLLM) -> bool:
        """True if prompts for the model served by this name are tokenized here, as engines of a rendering
        make them."""
        return any(
            entry.token_source is TokenSource.LOCAL and model in entry.names and entry.rendering == rendering
            for entry in self
        )

    async def look(self, worker: Worker, ask: Ask) -> list[WorkerTokenReport]:
        """Token sources of all models of a worker, loaded and compared now, for `kvgate check`."""
        entries = [self._entry(root, names, worker) for root, names in _roots(worker).items()]
        for entry in entries:
            await self._loader.have(entry.tokenizer)
            await self._days_by(partial(_day_by, ask)).learn(entry, worker.url, _name_of(entry.root, worker))
            await self._compare(entry, worker, partial(compare, ask))
        return [report(entry, worker.url) for entry in entries]

    async def _learn(self, entry: ModelEntry, worker: Worker, gone: asyncio.Event) -> None:
        """Load the tokenizer and compare the worker's tokens; retry until neither can change by itself."""
        assert self._prober is not None
        retry_s = RETRY_S
        while self._is_here(worker) and not gone.is_set():
            await self._loader.have(entry.tokenizer)
            self._settle(entry)
            await self._days.learn(entry, worker.url, _name_of(entry.root, worker))
            await self._compare(entry, worker, partial(self._prober.compare, worker.url))
            checked = entry.checked.get(worker.url)
            is_settled = checked is None or (checked.parity.made and not checked.parity.difference)
            if is_settled and not entry.tokenizer.is_passing:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await gone.wait()
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _compare(self, entry: ModelEntry, worker: Worker, compare: Compare) -> None:
        if self._probes:
            tokenizer, name = entry.tokenizer, _name_of(entry.root, worker)
            parity = await compare(self._comparison(entry, name, tokenizer, worker.url))
            if self._prober is not None and not self._is_here(worker):
                return
            if entry.tokenizer is not tokenizer:  # another reading of it is in use by now
                again = self._comparison(entry, name, entry.tokenizer, worker.url)
                parity = compared_again(again, parity.made)
            entry.checked[worker.url] = WorkerParity(parity, int(time.time() // 86400))
            await settle_reading(entry, self._loader, partial(self._comparison, entry, name))
        self._settle(entry)

    def _comparison(
        self, entry: ModelEntry, name: str, tokenizer: TokenizerEntry, url: str
    ) -> ParityComparison:
        renderer = tokenizer.renderer
        return ParityComparison(
            name,
            partial(self._ours, renderer, entry.day.zone(url)),
            lambda model, ids: renderer.decode(ids) if renderer else None,
            with_chats=renderer is None or renderer.renders_chats_as_engine,
            rendering=entry.rendering,
            advice=renderer.parity_advice if isinstance(renderer, PromptEncoder) else USUAL_ADVICE,
        )

    async def _day_of(self, entry: ModelEntry, url: str, name: str, days: Sequence[date]) -> date | None:
        renderer = entry.tokenizer.renderer
        if self._prober is None or renderer is None:
            return None
        return await self._prober.day_of(url, name, renderer.shows_day, days, entry.rendering)

    def _served(self) -> list[tuple[ModelEntry, dict[str, str]]]:
        """Models with the name by which each worker serves them, by URL."""
        workers = {member.worker.id: member.worker for member in self._fleet}
        return [
            (
                entry,
                {workers[id].url: _name_of(entry.root, workers[id]) for id in entry.workers if id in workers},
            )
            for entry in self
        ]

    def _ours(self, renderer: Renderer | None, zone: tzinfo | None, request: InferenceRequest) -> Prompt:
        try:
            return self._prompts.made_by(renderer, request, zone) if renderer else Prompt()
        except PromptError:
            return Prompt()

    def _refuse_later(self, renderer: Renderer, why: str) -> None:
        """Refuse a tokenizer of which a template takes too much; called in any thread."""
        if self._loop is None:
            self._refuse(renderer, why)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._refuse, renderer, why)

    def _refuse(self, renderer: Renderer, why: str) -> None:
        self._loader.refuse(renderer, why)
        for entry in self:
            self._settle(entry)

    def _is_here(self, worker: Worker) -> bool:
        """True if the worker is still a member, unchanged except for its names."""
        member = self._fleet.get(worker.id)
        return member is not None and replace(member.worker, served=worker.served) == worker

    # what follows ------------------------------------------------------------------------------

    def _settle(self, entry: ModelEntry) -> None:
        tokenizer, before = entry.tokenizer, entry.choices
        entry.token_source, entry.choices = choose_sources(
            entry.checked,
            has_local=tokenizer.renderer is not None,
            is_broken=tokenizer.state is LoadState.BROKEN,
            other_days=entry.day.others,
        )
        for url, choice in entry.choices.items():
            if before.get(url) != choice:
                is_bad = choice.token_source is not TokenSource.LOCAL and tokenizer.renderer is not None
                level = logging.WARNING if is_bad else logging.INFO
                log.log(
                    level,
                    "tokens of %s at %s: source %s (%s)",
                    entry.root,
                    url,
                    choice.token_source.value,
                    choice.why,
                )
        if before != entry.choices and self._answers:
            self._answers.forget()
        self._publish_soon()

    def _publish_soon(self) -> None:
        """Publish once for all changes of one turn of the loop: an endpoint may have many models."""
        if self._loop is None:
            self._publish()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        """Publish the token sources to the prompt source and the fleet."""
        self._is_due = False
        local: dict[str, Renderer | None] = {}
        others: dict[str, list[Renderer]] = {}
        zones: dict[tuple[str, Rendering], tzinfo] = {}
        if self._any_model:
            local[ANY_MODEL] = self._loader.get(_given(self._any_model)).renderer
        used, by_name = self._used(), self._by_name()
        for name, served in self._fleet.served().items():
            if entries := _entries_of(used.get(served.root, ()), by_name.get(name, ())):
                local[name] = _renderer(entries[0])
                zones |= {(name, each.rendering): zone for each in entries if (zone := each.day.zone())}
                if len(entries) > 1:
                    others[name] = [_renderer(entry) or _unknown(entry) for entry in entries[1:]]
            else:
                local[name] = _NOT_FOLLOWED
        self._prompts.set_all(local, others, zones)
        self._fleet.set_apart(
            {
                (worker, entry.root)
                for entry in self
                for worker in entry.workers
                if (member := self._fleet.get(worker))
                and (choice := entry.choices.get(member.worker.url))
                and choice.token_source is not entry.token_source
            }
        )

    def _used(self) -> dict[str, list[ModelEntry]]:
        """Renderings of each root's workers: first one that is tokenized here, then that of most workers."""
        used: dict[str, list[ModelEntry]] = {}
        for entry in self:
            used.setdefault(entry.root, []).append(entry)
        for root, entries in used.items():
            present = [entry for entry in entries if entry.workers]
            present.sort(key=lambda entry: (entry.token_source is not TokenSource.LOCAL, -len(entry.workers)))
            used[root] = present or entries[:1]
        return used

    def _by_name(self) -> dict[str, list[ModelEntry]]:
        by_name: dict[str, list[ModelEntry]] = {}
        for entry in self:
            for name in entry.names:
                by_name.setdefault(name, []).append(entry)
        return by_name

    # tokenizers --------------------------------------------------------------------------------

    def _load_given(self) -> None:
        """Load configured tokenizers on disk before there is traffic; a hub is used once its model is
        served."""
        for model, table in self._tables.items():
            source = self._source(model, [], VLLM)
            if table.tokenizer and (table.tokenizer[0] in "/.~" or Path(table.tokenizer).is_dir()):
                self._loader.read(self._loader.get(source))
        if self._any_model:
            tokenizer = self._loader.get(_given(self._any_model))
            self._loader.read(tokenizer, is_needed=True)
            if tokenizer.state is LoadState.BROKEN:
                raise ConfigError(f"tokenizer: {tokenizer.why}")
        self._publish()

    def _entry(self, root: str, names: Sequence[str], worker: Worker) -> ModelEntry:
        key = root, worker.rendering
        entry = self._entries.get(key)
        if entry is None:
            self._forget_idle()
            tokenizer = self._loader.get(self._source(root, names, worker.rendering))
            entry = self._entries[key] = ModelEntry(root, tokenizer, worker.rendering)
        entry.names.update(names)
        return entry

    def _forget_idle(self) -> None:
        """Forget roots without workers, where they have become many: a worker may report others each
        time."""
        idle = [key for key, entry in self._entries.items() if not entry.workers]
        if len(idle) >= MAX_IDLE:
            for key in idle:
                del self._entries[key]
            self._loader.keep(self._used_tokenizers())

    def _source(self, root: str, names: Iterable[str], rendering: Rendering) -> TokenizerSource:
        table = next((self._tables[name] for name in (*names, root) if name in self._tables), ModelTable())
        name = table.tokenizer or self._any_model
        if table.template or table.renderer != "auto":
            return TokenizerSource(name or root, table.template, table.renderer, bool(name), rendering)
        return TokenizerSource(name or root, is_given=bool(name), rendering=rendering)

    def _used_tokenizers(self) -> set[TokenizerEntry]:
        of_all = (each for entry in self for each in (entry.tokenizer, entry.other))
        return {each for each in of_all if each is not None}

    # people ------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Status view: each model's tokenizer, and the token source of each of its workers."""
        used = self._used_tokenizers()
        idle = [each for each in self._loader if each not in used and each.state is not LoadState.SEARCHING]
        return [describe(entry) for entry in self] + [
            {"model": self._shown(tokenizer.source), **tokenizer.describe(), "workers": []}
            for tokenizer in idle
        ]

    def tokens_at(self, url: str) -> list[dict[str, str]]:
        """Token source of a worker, for each of its models."""
        return [
            {"model": entry.root, "source": choice.token_source.value, "reason": choice.why}
            for entry in self
            if (choice := entry.choices.get(url))
        ]

    def _shown(self, source: TokenizerSource) -> str:
        return "all models" if source == _given(self._any_model) else source.name


async def warn_of_unserved(catalog: Catalog, fleet: Fleet, has_all_joined: Callable[[], bool]) -> None:
    """Wait until all workers have joined, then warn once of each tokenizer for a model that none serves."""
    while not (has_all_joined() and fleet.served()):  # noqa: ASYNC110
        await asyncio.sleep(UNSERVED_LOOK_S)
    served = ", ".join(fleet.served())
    for name in catalog.unserved():
        log.warning("tokenizer of %s is not used: no worker serves this model; served: %s", name, served)


def _given(name: str) -> TokenizerSource:
    return TokenizerSource(name, is_given=True)


def _roots(worker: Worker) -> dict[str, list[str]]:
    """Names of a worker by root, of the first `MAX_ROOTS` of these."""
    roots: dict[str, list[str]] = {}
    for served in worker.served:
        if served.root in roots or len(roots) < MAX_ROOTS:
            roots.setdefault(served.root, []).append(served.name)
    return roots


async def _day_by(ask: Ask, entry: ModelEntry, url: str, name: str, days: Sequence[date]) -> date | None:
    renderer = entry.tokenizer.renderer
    return await day_of(name, ask, renderer.shows_day, days, entry.rendering) if renderer else None


_NOT_FOLLOWED = Unavailable(f"its worker serves more than {MAX_ROOTS} models, each with a root of its own")


def _name_of(root: str, worker: Worker) -> str:
    """Name by which the worker serves the root itself, else an adapter of it."""
    names = [served for served in worker.served if served.root == root]
    return next((served for served in names if served.adapter is None), names[0]).name


def _entries_of(of_root: Sequence[ModelEntry], of_name: Sequence[ModelEntry]) -> list[ModelEntry]:
    """Renderings of the workers of a name: those of its root, then others of workers that report another root
    for the same model (vLLM reports the model's path, SGLang its served name). One that is tokenized here
    is first."""
    entries = list(of_root)
    for entry in of_name:
        if entry.workers and not any(entry.rendering == other.rendering for other in entries):
            entries.append(entry)
    present = [entry for entry in entries if entry.workers] or entries
    return sorted(present, key=lambda entry: entry.token_source is not TokenSource.LOCAL)


def _unknown(entry: ModelEntry) -> Renderer:
    """Stand-in for a rendering by which only its workers make prompts, beside one that is in use."""
    return Unavailable(f"the gateway cannot render prompts as {entry.rendering} does", entry.rendering)


def _renderer(entry: ModelEntry) -> Renderer | None:
    """Renderer of the model's prompts; None where a worker tokenizes."""
    tokenizer = entry.tokenizer
    if entry.token_source is TokenSource.LOCAL:
        return tokenizer.renderer
    if entry.token_source is TokenSource.REMOTE:
        return None
    if tokenizer.state is LoadState.BROKEN:
        why = f"the tokenizer is broken, see /admin/tokenizer: {tokenizer.why}"
    else:
        why = "no tokenizer found, and no worker answers /tokenize"
    return Unavailable(why, entry.rendering)
