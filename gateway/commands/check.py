"""Command `kvgate check`: probes every worker once, and prints how exactly each can be indexed and how to
improve it."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from gateway.commands.check_events import PORTS, EventsCheck, event_place
from gateway.commands.check_prompts import KindProof, OursOf, prove
from gateway.core.decode_errors import UNREADABLE
from gateway.core.eligibility import Eligibility, summary
from gateway.core.engine import EventSource
from gateway.core.event_stream import StreamState
from gateway.core.pd_pairs import are_pair, kind_of, misfits
from gateway.core.rendering import Rendering
from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage
from gateway.core.worker import Role, Worker
from gateway.discovery.declared import DeclaredSettings
from gateway.discovery.engine_detection import Engines
from gateway.discovery.name_prober import NameProber
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts, Mode
from gateway.discovery.salt_prober import WORDS, SaltProber
from gateway.http.address import Address
from gateway.parity.comparison import Made, parity_difference
from gateway.parity.prober import Ask, made_by
from gateway.replication.messages import AgentHello
from gateway.tokenization.worker_tokens import read_tokens
from gateway.upstream.control_client import ControlSession

ReachAgent = Callable[[Worker, float | None], Awaitable[tuple[str, AgentHello | str] | None]]
"""Tries a worker's agent: its address, with its hello or the reason why it cannot be followed; None without
one."""


async def _no_agent(worker: Worker, start_time_s: float | None) -> None:
    return None


class TokenReport(Protocol):
    @property
    def note(self) -> str: ...
    @property
    def fault(self) -> str | None: ...


class Tokens(Protocol):
    """Finds the tokenizers of a worker's models, and compares their tokens with its own (`models/`)."""

    async def look(self, worker: Worker, ask: Ask) -> Sequence[TokenReport]: ...


_PUBLISHED = re.compile(r"(tcp://\*:)(\d+)")


UNKNOWN_SIZE = 64
"""Block size of a prompt for a worker that reports none: few engines have larger blocks."""
TOKENIZER = "kvgate serve --tokenizer DIR"
NOT_ANSWERED = "it answers no completion here, so it is not known whether it reports cached tokens"
NOT_ASKED = "without completions (--dry-run) it is not known whether it reports cached tokens"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for one worker: its mode, the reason, and the flags for the best mode. `chats` is the mode of
    its chats where that of its texts is another, `chats_why` the reason. `fault` makes the check fail. Its KV
    events are read at `place`. `made` are its tokens, if it may be in a disaggregated pair."""

    name: str
    mode: Mode | None
    facts: str
    obstacle: str | None = None
    flags: str | None = None
    agent: str | None = None
    tokens: tuple[str, ...] = ()
    fault: str | None = None
    worker: Worker | None = None
    place: str | None = None
    made: Made = field(default_factory=dict)
    chats: Mode | None = None
    chats_why: str | None = None

    @property
    def _label(self) -> str:
        if self.mode is None:
            return "not reached"
        if self.chats is None:
            return self.mode.label
        return f"texts {self.mode.label}, chats {self.chats.label}"

    @property
    def _reached(self) -> str:
        return "the next mode" if self.mode is Mode.LOAD_ONLY else "the best mode"

    @property
    def is_indexed(self) -> bool:
        """True if requests of some kind are routed by the worker's cache."""
        return self.mode is not None and self.mode > Mode.LOAD_ONLY

    @property
    def is_good(self) -> bool:
        return self.mode is not None and self.fault is None

    def lines(self) -> list[str]:
        lines = [f"{self.name}: {self._label}" + (f"  ({self.facts})" if self.facts else "")]
        if self.agent:
            lines.append(f"    {self.agent}")
        lines += [f"    {note}" for note in self.tokens]
        if self.fault:
            lines.append(f"    WRONG: {self.fault}")
        if self.obstacle:
            lines.append(f"    {self.obstacle}")
        if self.chats_why:
            lines.append(f"    chats: {self.chats_why}")
        if self.chats is Mode.LOAD_ONLY and self.flags != TOKENIZER:
            lines.append(f"    to predict its chats, run:  {TOKENIZER}")
        if self.flags:
            start = "run" if self.flags.startswith("kvgate ") else "start the worker with"
            lines.append(f"    to reach {self._reached}, {start}:  {self.flags}")
        return lines


@dataclass(frozen=True, slots=True)
class Checker:
    """Probes workers; `source_of` returns the event source of a worker's rank, if any."""

    session: ControlSession
    engines: Engines
    source_of: Callable[[Facts, int], EventSource | None]
    events: EventsCheck
    has_tokenizer: Callable[[str, Rendering], bool]
    events_port: int = 5557
    reach_agent: ReachAgent = _no_agent
    tokens: Tokens | None = None
    declared: DeclaredSettings = field(default_factory=DeclaredSettings)
    eligibility: Eligibility | None = None
    sends_completions: bool = True
    ours_of: Callable[[Worker], OursOf] | None = None
    """kvgate's own tokens of a worker's requests, by the tokenizer of their model."""

    async def check(self, url: str) -> list[Finding]:
        probe = Probe(url, self.engines, self.session, {}, self.events_port)
        try:
            await probe.check_health()
            facts = await probe.facts()
            workers = self.declared.workers_of(facts)
        except ProbeError as exc:
            return [Finding(url, None, "", str(exc))]
        if not facts.models:
            return [Finding(url, None, "", f"{url} serves no model")]
        if self.eligibility is not None and self.sends_completions:
            await SaltProber(self.eligibility, self.session.post).prove(facts)
            await NameProber(self.eligibility, self.session.post).prove(facts)
        return [
            replace(
                await self._worker(facts, worker),
                worker=worker,
                place=event_place(worker, self.source_of(facts, worker.dp_rank)),
            )
            for worker in workers
        ]

    async def _worker(self, facts: Facts, worker: Worker) -> Finding:
        ask = partial(self._post, worker)
        sights = await self.tokens.look(worker, ask) if self.tokens else ()
        finding = await self._with_chats(worker, await self._known(facts, worker))
        if kind_of(worker):
            finding = replace(finding, made=await made_by(worker.served[0].name, ask))
        faults = [sight.fault for sight in sights if sight.fault]
        notes = [sight.note for sight in sights]
        if self.eligibility is not None and (
            proof := self.eligibility.proofs.get((worker.url, worker.dp_rank))
        ):
            notes.append(f"tenants' caches {WORDS[proof.isolation]} ({proof.reason})")
        if self.eligibility is not None and (unusable := self.eligibility.unusable(worker)):
            is_all = len(unusable) == len(worker.served)
            (faults if is_all else notes).append(f"not used for {summary(unusable)}")
        faults += [finding.fault] if finding.fault else []
        return replace(finding, tokens=tuple(notes), fault="; ".join(faults) or None)

    async def _with_chats(self, worker: Worker, finding: Finding) -> Finding:
        """The finding, which a text has decided, with what a chat shows, and with the worker's own counts of
        both beside kvgate's tokens."""
        has_local = self.has_tokenizer(worker.served[0].name, worker.rendering)
        if not finding.is_indexed or (has_local and self.ours_of is None):
            return finding
        ours_of = self.ours_of(worker) if self.ours_of and has_local else None
        sends = self.sends_completions and worker.role is Role.BOTH
        post = partial(self._post, worker)
        proofs = [await prove(worker, "chats", post, ours_of, sends=sends)]
        if has_local and sends:
            proofs.append(await prove(worker, "texts", post, ours_of, sends=True))
        return judged(finding, proofs)

    async def _known(self, facts: Facts, worker: Worker) -> Finding:
        found = await self.reach_agent(worker, facts.start_time_s)
        if found is None:
            return await self._by_itself(facts, worker)
        agent, hello = found
        if isinstance(hello, str):
            words = f"its agent at {agent} cannot be used: {hello}"
            return replace(await self._by_itself(facts, worker), agent=words)
        is_exact = hello.status.state is StreamState.EXACT
        finding = await self._by_itself(facts, worker, is_known=is_exact)
        why = f" ({hello.status.reason})" if hello.status.reason else ""
        words = f"its agent at {agent} is {hello.status.state.value}{why}: {hello.num_blocks} blocks"
        return replace(finding, agent=words)

    async def _by_itself(self, facts: Facts, worker: Worker, *, is_known: bool = False) -> Finding:
        """Finding without an agent's help; `is_known`: the agent reports all of its blocks, whatever its own
        events would."""
        facts_text = _facts_text(worker, bool(facts.sources))
        flags = self.engines.named(facts.engine).flags
        if not worker.block_size and not facts.sources:
            why = "its metrics have no block size, so its cache cannot be indexed"
            return Finding(worker.id, Mode.LOAD_ONLY, facts_text, why)
        if not await self._can_tokenize(worker):
            why = "no tokenizer is given for its model, and its own /tokenize does not answer"
            return Finding(worker.id, Mode.LOAD_ONLY, facts_text, why, TOKENIZER)
        unverified = None
        reports = await self._reports_cached_tokens(facts, worker)
        if reports is None:
            unverified = NOT_ANSWERED if self.sends_completions else NOT_ASKED
        elif not reports:
            unverified = "it does not report cached tokens, so predictions cannot be verified"
        source = self.source_of(facts, worker.dp_rank)
        complete = partial(self._complete, worker) if self.sends_completions else None
        obstacle = None if is_known else await self.events.obstacle(worker, source, complete)
        if obstacle:  # both at once, so that a large model is restarted once
            asks_both = unverified and reports is not None
            both = f"{flags.cached_tokens} {flags.events}" if asks_both else flags.events
            why = f"{obstacle}; {unverified}" if unverified else obstacle
            return Finding(worker.id, Mode.APPROXIMATE, facts_text, why, both.strip() or None)
        if unverified:
            wanted = None if reports is None else flags.cached_tokens or None
            return Finding(worker.id, Mode.EXACT, facts_text, unverified, wanted)
        return Finding(worker.id, Mode.VERIFIED, facts_text)

    async def _can_tokenize(self, worker: Worker) -> bool:
        model = worker.served[0].name
        if self.has_tokenizer(model, worker.rendering):
            return True
        answer = await self._post(worker, "/tokenize", {"model": model, "prompt": "a"})
        try:
            return bool(read_tokens(answer or b""))  # others may return no tokens for an empty text
        except UNREADABLE:
            return False

    async def _reports_cached_tokens(self, facts: Facts, worker: Worker) -> bool | None:
        """True if the worker says so itself, or if a repeated prompt reports cached tokens; None where no
        completions may be sent, or none is answered.

        Prefill and decode workers of some engines refuse requests that are for one of them alone, so their
        own description counts first.
        """
        if facts.reports_cached_tokens is not None:
            return facts.reports_cached_tokens
        if not self.sends_completions:
            return None
        is_answered = False
        for prompt in self._prompts(worker):
            body = {"model": worker.served[0].name, "prompt": prompt, "max_tokens": 1}
            await self._post(worker, "/v1/completions", body)
            answer = await self._post(worker, "/v1/completions", body)
            is_answered |= answer is not None
            usage = read_usage(answer or b"")
            if isinstance(usage, Usage):
                return usage.cached_tokens is not None
        return False if is_answered else None

    def _prompts(self, worker: Worker) -> Iterator[str | list[int]]:
        """Token ids where the engine takes them, which need no tokenizer; else, or where they are refused, a
        text, of a token for each word at least."""
        num = 2 * (worker.block_size or UNKNOWN_SIZE) + 1
        if self.engines.named(worker.engine).takes_lists:
            yield [1] * num
        yield "word " * num

    async def _complete(self, worker: Worker, prompt: list[int]) -> bytes | None:
        body = {"model": worker.served[0].name, "prompt": prompt, "max_tokens": 1}
        return await self._post(worker, "/v1/completions", body)

    async def _post(self, worker: Worker, path: str, body: object) -> bytes | None:
        rank = {"x-data-parallel-rank": str(worker.dp_rank)} if worker.dp_size > 1 else {}
        return await self.session.post(worker.url, path, body, rank)


def judged(finding: Finding, proofs: Sequence[KindProof]) -> Finding:
    """The finding with the verdicts of proofs. Other tokens than the worker counts are a fault where its
    events name blocks by their tokens; else only the predicted counts are off."""
    assert finding.mode is not None
    for proof in proofs:
        if proof.fault and finding.mode >= Mode.EXACT:
            finding = replace(finding, fault="; ".join(filter(None, (finding.fault, proof.fault))))
        if proof.kind == "chats" and proof.obstacle:
            finding = replace(finding, chats=Mode.LOAD_ONLY, chats_why=proof.obstacle)
        elif (
            proof.kind == "chats" and proof.counted and proof.cached is None and finding.mode is Mode.VERIFIED
        ):
            why = "their answers report no cached tokens, so predictions cannot be verified"
            finding = replace(finding, chats=Mode.EXACT, chats_why=why)
    return finding


def _facts_text(worker: Worker, is_published: bool = False) -> str:
    names = ", ".join(served.name for served in worker.served)
    facts_text = [f"{worker.engine} {worker.version or '?'}", f"models {names}"]
    if worker.role is not Role.BOTH:
        connector = f" by {worker.transfer.connector}" if worker.transfer else ", without a connector"
        facts_text.append(f"{worker.role.value} worker{connector}")
    if not worker.block_size and is_published:
        facts_text.append("blocks of a size that its KV events show")
    elif worker.block_size:
        facts_text.append(f"{worker.num_blocks or '?'} blocks of {worker.block_size} tokens")
    return "; ".join(facts_text)


def pair_lines(workers: Iterable[Worker | None]) -> Iterator[str]:
    """Lines about workers that could be pairs, and are not."""
    for prefill, decode, why in misfits(worker for worker in workers if worker):
        yield f"{prefill} and {decode}: not used as a pair ({why})"


async def check_all(checker: Checker, urls: list[str]) -> list[Finding]:
    found = await asyncio.gather(*(checker.check(url) for url in urls))
    findings = [finding for findings in found for finding in findings]
    findings = [replace(one, fault=one.fault or _unlike(one, findings)) for one in findings]
    return list(_on_ports_of_their_own(list(_at_places_of_their_own(findings))))


def _at_places_of_their_own(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Findings with the fault of those with KV events that are read at one place: at most one's are there."""
    names: dict[str, list[str]] = {}
    for one in findings:
        if one.place is not None and one.mode is not None and one.mode >= Mode.EXACT:
            names.setdefault(one.place, []).append(one.name)
    for one in findings:
        others = [name for name in names.get(one.place or "", ()) if name != one.name]
        if not others or one.mode is None or one.mode < Mode.EXACT:
            yield one
            continue
        fault = f"its KV events are read at {one.place}, as are those of {', '.join(others)} ({PORTS})"
        yield replace(one, mode=Mode.APPROXIMATE, fault=one.fault or fault)


def _on_ports_of_their_own(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Findings with distinct ports for engines on one host: each rank takes one. Engines that publish already
    keep theirs."""
    taken: Counter[str] = Counter()
    first: dict[str, int] = {}
    for one in sorted(findings, key=lambda one: one.flags is not None):
        if one.worker is not None:
            host = Address.of(one.worker.url).host
            first.setdefault(one.worker.url, taken[host])
            taken[host] += 1
    for one in findings:
        further = first[one.worker.url] if one.worker else 0
        yield replace(one, flags=one.flags and _moved(one.flags, further))


def _moved(flags: str, further: int) -> str:
    if "--events-replay-port" in flags:  # the gateway has one such port for all workers
        return flags
    return _PUBLISHED.sub(lambda port: f"{port[1]}{int(port[2]) + further}", flags)


def _unlike(decode: Finding, findings: Sequence[Finding]) -> str | None:
    """Reason why a decode worker fits no prefill worker; None if it does."""
    for prefill in findings:
        if not prefill.worker or not decode.worker or not are_pair(prefill.worker, decode.worker):
            continue
        if words := parity_difference(prefill.made, decode.made):
            return f"{prefill.name} renders prompts differently: {words}"
    return None
