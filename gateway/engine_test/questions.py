"""The questions of the conformance test, in order: each sends its requests, and has them judged.

What a question leaves in the cache is a prompt of its own, which no other question sends.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.core.request import InferenceRequest
from gateway.core.worker import Role, Worker
from gateway.discovery.probe import ProbeError, ProbeTimeout
from gateway.discovery.salt_proof import requests_of, verdict_of
from gateway.engine_test import judgement
from gateway.engine_test.followed import Followed
from gateway.engine_test.prompt_questions import OursOf, prompts
from gateway.engine_test.report import EngineFinding, Verdict
from gateway.engine_test.subject import COMPLETIONS, Subject

TIMEOUT_S = 120.0
"""Time for one question, with all of its answers: a prompt of the longest length on a CPU."""
MAX_UNANSWERED = 2
"""Questions without an answer in time, after which only the worker's health is asked."""
EVENTS_S = 5.0
"""Time in which an event must come, or a stream be followed."""
IDLE_S = 10.0
"""Time in which a cancelled stream must have ended."""
NUM_PREDICTIONS = 60
LONG_ANSWER = 2_000
"""Tokens of the stream that is left."""
MAX_ADAPTERS = 4

Question = Callable[[], Coroutine[Any, Any, Sequence[EngineFinding]]]
Follow = Callable[[Sequence[Worker]], AbstractAsyncContextManager[Followed]]
"""Follows the events of some ranks, in an index of its own; one without a publisher has no state there."""


def _unknown(request: InferenceRequest) -> Sequence[int]:
    return ()


@dataclass(frozen=True, slots=True)
class Examination:
    """Questions to one worker, with the means to follow its events. `ours_of` are kvgate's own tokens of a
    request, where it has a tokenizer."""

    subject: Subject
    follow: Follow
    timeout_s: float = TIMEOUT_S
    ours_of: OursOf = _unknown

    async def findings(self) -> AsyncIterator[EngineFinding]:
        """Ask everything that the worker's role allows. Nothing is raised for what it does."""
        questions: list[Question] = [self._load]
        if not self.subject.facts.models:
            questions = []
            yield EngineFinding("models", Verdict.FAIL, "it lists none", "no request is sent there")
        elif self.subject.worker.role is not Role.BOTH:
            role = self.subject.worker.role.value
            yield EngineFinding(
                "role", Verdict.INCONCLUSIVE, f"a {role} worker", "test it with its other half, by traffic"
            )
        else:
            questions += [
                self._token_ids, self._events, self._salts, self._names, self._ranks, self._prompts,
                self._several, self._streams, self._fields, self._bad_requests,
            ]  # fmt: skip
        questions.append(self._is_alive)
        num_unanswered = 0
        for question in questions:
            name = question.__name__.strip("_").replace("_", " ")
            if num_unanswered >= MAX_UNANSWERED and question != self._is_alive:
                words = f"not asked, since {num_unanswered} questions had no answer"
                yield EngineFinding(name, Verdict.INCONCLUSIVE, words)
                continue
            found, is_answered = await self._within_time(name, question)
            num_unanswered += not is_answered
            for finding in found:
                yield finding

    async def _within_time(self, name: str, question: Question) -> tuple[Sequence[EngineFinding], bool]:
        """The findings of a question, and whether the worker answered it in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await question(), True
        except TimeoutError:
            words = f"no answer within {self.timeout_s:g} s"
            return [
                EngineFinding(name, Verdict.FAIL, words, "requests would wait there until their timeout")
            ], False
        except ProbeError as exc:
            down = EngineFinding(name, Verdict.FAIL, str(exc), "the worker would count as down")
            return [down], not isinstance(exc, ProbeTimeout)

    async def _load(self) -> Sequence[EngineFinding]:
        metrics = await self.subject.probe.metrics()
        if not metrics:
            return [
                EngineFinding(
                    "load", Verdict.UNSUPPORTED, "no metrics", "only kvgate's own requests count as load"
                )
            ]
        wanted = ("num_requests_running", "num_requests_waiting", "kv_cache_usage")
        missing = [name for name in wanted if any(getattr(each, name) is None for each in metrics.values())]
        if missing:
            names = ", ".join(name.replace("_", " ") for name in missing)
            return [
                EngineFinding(
                    "load", Verdict.UNSUPPORTED, f"no {names}", "these are estimated from kvgate's requests"
                )
            ]
        return [EngineFinding("load", Verdict.OK, "running, waiting and KV use are reported")]

    async def _token_ids(self) -> Sequence[EngineFinding]:
        subject, name = self.subject, "token ids"
        if not subject.conventions.takes_lists:
            words = "it accepts texts only, and a list may crash it: none was sent"
            unsent = EngineFinding(
                name, Verdict.UNSUPPORTED, words, "lists go to other workers of the model, or get 400"
            )
            return [unsent, await self._repeated_text()]
        prompt = subject.fresh_prompt(4 * subject.block_size + 1)
        first = await subject.complete(prompt)
        if first.status != 200:
            refused = EngineFinding(
                name, Verdict.UNSUPPORTED, first.describe(), "prompts are sent as text only"
            )
            return [refused, await self._repeated_text()]
        if first.usage is None:
            none = EngineFinding(
                name, Verdict.UNSUPPORTED, "accepted, without usage", "tenants' tokens are estimated"
            )
            return [none, judgement.cached_of_repeat(None, len(prompt), subject.worker.block_size)]
        num, wanted = first.usage.prompt_tokens, len(prompt)
        if num == wanted:
            found = EngineFinding(name, Verdict.OK, "accepted as they are")
        else:
            words = f"{wanted} sent, {num} counted"
            found = EngineFinding(name, Verdict.FAIL, words, "its cache is looked up under other tokens")
        cached = (await subject.complete(prompt)).cached_tokens
        return [found, judgement.cached_of_repeat(cached, wanted, subject.worker.block_size)]

    async def _repeated_text(self) -> EngineFinding:
        """Ask for the cached tokens of a text that is sent twice."""
        text = self.subject.fresh_text(4 * self.subject.block_size)
        await self.subject.complete(text)
        again = await self.subject.complete(text)
        num = again.usage.prompt_tokens if again.usage else 0
        return judgement.cached_of_repeat(again.cached_tokens, num, self.subject.worker.block_size)

    async def _events(self) -> Sequence[EngineFinding]:
        """Ask for events, predictions and replay, on the endpoint's first rank."""
        worker = self.subject.worker
        approximate = "its cache is assumed from the prompts that kvgate sends"
        if not worker.block_size:
            return [EngineFinding("events", Verdict.UNSUPPORTED, "no block size is reported", approximate)]
        try:
            async with self.follow([worker]) as live:
                if live.state(worker) is None:
                    return [EngineFinding("events", Verdict.UNSUPPORTED, "none are published", approximate)]
                is_exact = await live.is_exact_within(worker, EVENTS_S)
                found = [await self._stored(live, worker)]
                if found[0].verdict is not Verdict.OK:
                    return found
                found.append(judgement.predictions(await self._predicted(live, worker)))
                if not is_exact:
                    words = "a stream that began late stays BLIND"
                    return [
                        *found,
                        EngineFinding("replay", Verdict.UNSUPPORTED, words, "it recovers slowly, by traffic"),
                    ]
                await live.is_settled()
                async with self.follow([worker]) as late:
                    if not await late.is_exact_within(worker, EVENTS_S):
                        words = "a second follower is not EXACT"
                        return [*found, EngineFinding("replay", Verdict.INCONCLUSIVE, words)]
                    await late.is_settled()
                    first, second = live.blocks(worker), late.blocks(worker)
                    return [*found, judgement.replayed(len(first), len(second), len(first & second))]
        except ValueError as exc:
            return [EngineFinding("events", Verdict.FAIL, str(exc), approximate)]

    async def _stored(self, live: Followed, worker: Worker) -> EngineFinding:
        """Check that a new prompt is stored under its own hashes."""
        assert worker.block_size
        before, prompt = live.num_stored(worker), self.subject.fresh_prompt(3 * worker.block_size + 1)
        answer = await self.subject.complete(prompt, **self._on(worker))
        if answer.status != 200:
            return EngineFinding("events", Verdict.INCONCLUSIVE, answer.describe())
        if await live.holds_within(worker, prompt, 3, EVENTS_S):
            return EngineFinding("events", Verdict.OK, "a prompt's blocks are stored under its own hashes")
        num = live.num_stored(worker) - before
        if not num:
            return EngineFinding(
                "events", Verdict.UNSUPPORTED, "none came for a new prompt", "its cache stays unknown"
            )
        words = f"{num} blocks came, {live.overlap(worker, prompt)} of the prompt's 3 under its hashes"
        return EngineFinding("events", Verdict.FAIL, words, "lookups of its cache would find nothing")

    async def _predicted(self, live: Followed, worker: Worker) -> list[tuple[int, int | None]]:
        """Compare predicted and reported cached tokens of prompts that share prefixes of random lengths."""
        subject, size = self.subject, worker.block_size or 1
        stems = [subject.fresh_prompt(subject.rng.randrange(2, 9) * size) for _ in range(6)]
        pairs: list[tuple[int, int | None]] = []
        for _ in range(NUM_PREDICTIONS):
            stem = subject.rng.choice(stems)
            cut = subject.rng.randrange(1, len(stem) + 1)
            prompt = stem[:cut] + subject.fresh_prompt(subject.rng.randrange(1, 2 * size))
            predicted = min(live.overlap(worker, prompt), (len(prompt) - 1) // size) * size
            answer = await subject.complete(prompt, **self._on(worker))
            pairs.append((predicted, answer.cached_tokens))
            await live.holds_within(worker, prompt, len(prompt) // size, EVENTS_S)
        return pairs

    def _on(self, worker: Worker) -> dict[str, Any]:
        return {"dp_rank": worker.dp_rank} if worker.dp_size > 1 else {}

    async def _salts(self) -> Sequence[EngineFinding]:
        conventions = self.subject.conventions
        if not conventions.has_salts and not conventions.takes_lists:
            none = EngineFinding(
                "tenants' salts", Verdict.UNSUPPORTED, "it has none", "no tenant's request is sent there"
            )
            return [none]
        answers: list[bytes | None] = []
        for body in requests_of(self.subject.facts, self.subject.rng):
            rank = {"x-data-parallel-rank": "0"} if self.subject.worker.dp_size > 1 else {}
            answer = await self.subject.post(COMPLETIONS, body, rank)
            answers.append(answer.body if answer.status == 200 else None)
        return [judgement.salts(verdict_of(answers), is_declared=conventions.has_salts)]

    async def _names(self) -> Sequence[EngineFinding]:
        """Ask for an unknown model, and for each adapter beside its base."""
        subject = self.subject
        if subject.conventions.loads_by_name:
            words = "not asked: it would unload its model for an unknown name"
            return [
                EngineFinding("unknown model", Verdict.UNSUPPORTED, words, "it is sent listed names only")
            ]
        answer = await subject.complete("a", model="kvgate-no-such-model")
        found = [judgement.unknown_model(answer.status, answer.describe())]
        adapters = [served for served in subject.worker.served if served.adapter]
        for served in adapters[:MAX_ADAPTERS]:
            prompt = subject.fresh_prompt(3 * subject.block_size + 1)
            await subject.complete(prompt, **self._on(subject.worker))
            named = {"model": served.called or served.name, **self._on(subject.worker)}
            answer = await subject.complete(prompt, **named)
            cached = answer.cached_tokens if answer.status == 200 else None
            found.append(judgement.adapter(served.name, cached, len(prompt)))
        return found

    async def _ranks(self) -> Sequence[EngineFinding]:
        if self.subject.worker.dp_size < 2:
            return []
        prompt = self.subject.fresh_prompt(3 * self.subject.block_size + 1)
        cached = [(await self.subject.complete(prompt, dp_rank=rank)).cached_tokens for rank in (0, 0, 1)]
        return [judgement.ranks(cached)]

    async def _prompts(self) -> Sequence[EngineFinding]:
        return await prompts(self.subject, self.ours_of)

    async def _several(self) -> Sequence[EngineFinding]:
        subject, found = self.subject, []
        if subject.conventions.takes_lists:
            both = [subject.fresh_prompt(8), subject.fresh_prompt(8)]
            answer = await subject.complete(both)
            is_alive = (await subject.complete("a")).status == 200
            found.append(judgement.several_prompts(answer.status, answer.describe(), is_alive=is_alive))
        prompt = subject.fresh(3 * subject.block_size + 1)
        answer = await subject.complete(prompt, n=2, temperature=1)
        num = answer.usage.prompt_tokens if answer.usage else len(prompt)
        judged = judgement.several_answers(answer.status, answer.cached_tokens, num, answer.num_choices)
        return [*found, judged]

    async def _streams(self) -> Sequence[EngineFinding]:
        await self.subject.is_idle_within(IDLE_S)
        begun = await self.subject.leave_a_stream(LONG_ANSWER)
        is_idle = await self.subject.is_idle_within(IDLE_S) if begun else None
        return [judgement.leaving(begun, is_idle)]

    async def _fields(self) -> Sequence[EngineFinding]:
        answer = await self.subject.complete("a", kvgate_no_such_field=1)
        return [judgement.unknown_field(answer.status)]

    async def _bad_requests(self) -> Sequence[EngineFinding]:
        subject = self.subject
        bodies: dict[str, bytes] = {
            "no JSON": b"{",
            "no prompt": msgspec.json.encode({"model": subject.model}),
            "max_tokens as a text": msgspec.json.encode(
                {"model": subject.model, "prompt": "a", "max_tokens": "many"}
            ),
        }
        if not subject.conventions.takes_no_limit:
            endless = {"model": subject.model, "prompt": "a", "max_tokens": -1}
            bodies["max_tokens of -1"] = msgspec.json.encode(endless)
        most = next((served.max_model_len for served in subject.worker.served if served.max_model_len), None)
        if most and most < 1 << 20:
            prompt = subject.fresh(most + 1)
            bodies["a prompt that is too long"] = msgspec.json.encode(
                {"model": subject.model, "prompt": prompt, "max_tokens": 1}
            )
        statuses = [(what, (await subject.send(COMPLETIONS, data)).status) for what, data in bodies.items()]
        return [judgement.bad_requests(statuses)]

    async def _is_alive(self) -> Sequence[EngineFinding]:
        """Check that the worker is healthy after the test, and the same process."""
        subject, before = self.subject, self.subject.facts.start_time_s
        await subject.probe.check_health()
        now = (await subject.probe.facts()).start_time_s
        if before is not None and now is not None and abs(now - before) > 0.5:
            return [EngineFinding("health", Verdict.FAIL, "it was restarted during the test")]
        return [EngineFinding("health", Verdict.OK, "healthy after all of this, the same process")]
