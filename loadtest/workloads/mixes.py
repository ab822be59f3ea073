"""Traffic that users have, as requests in virtual time: one system prompt for all, coding agents,
classification by examples, documents asked many questions, chats, unique prompts. Requests come at random
(Poisson) for `seconds`.

Lengths are in tokens; a pair is the range that one is drawn from. Prompts are whole blocks of `block` tokens
that others may share, and then tokens of their own.
"""

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import count

from gateway.replay.job import HashedPrompt, ReplayJob

BLOCK = 512
Range = tuple[int, int]


class _Prompts:
    """Prompts of one workload; blocks that were not asked for before are numbered."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._numbers = count(1)

    def fresh(self, num_tokens: int) -> list[int]:
        """Whole blocks of so many tokens, the last one rounded up."""
        return [next(self._numbers) for _ in range(-(-num_tokens // self._block))]

    def prompt(self, prefix: Sequence[int], num_own: int) -> HashedPrompt:
        blocks = array("Q", [*prefix, *self.fresh(num_own)])
        return HashedPrompt(blocks, self._block, len(prefix) * self._block + num_own)

    def whole(self, prompt: HashedPrompt) -> list[int]:
        """Blocks of a prompt that a longer one can begin with."""
        return list(prompt.hashes[: prompt.num_tokens // self._block])


def _arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    at = 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield at


def _long_tailed(rng: random.Random, mean: float, sigma: float, bounds: Range) -> int:
    """Length with this mean before it is cut to the bounds (log-normal)."""
    drawn = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return int(min(max(drawn, bounds[0]), bounds[1]))


def hot_prompt(
    seed: int,
    *,
    rate: float,
    seconds: float,
    prefix: int = 30_000,
    share: float = 0.9,
    own: Range = (200, 1000),
    answer: Range = (50, 300),
    other: int = 8000,
    every_s: float = math.inf,
    block: int = BLOCK,
) -> Iterator[ReplayJob]:
    """A system prompt for `share` of the requests, another one `every_s`; the others have prompts of their
    own, of `other` tokens on average."""
    rng, prompts = random.Random(seed), _Prompts(block)
    hot, until = prompts.fresh(prefix), every_s
    for at in _arrivals(rng, rate, seconds):
        if at > until:
            hot, until = prompts.fresh(prefix), until + every_s
        if rng.random() < share:
            prompt = prompts.prompt(hot, rng.randint(*own))
        else:
            prompt = prompts.prompt([], _long_tailed(rng, other, 0.6, (500, 40_000)))
        yield ReplayJob(at, prompt, rng.randint(*answer))


def few_shot(
    seed: int,
    *,
    rate: float,
    seconds: float,
    examples: int = 4000,
    own: Range = (50, 150),
    answer: Range = (3, 10),
    block: int = 16,
) -> Iterator[ReplayJob]:
    """Classification: the same examples for all, then a line."""
    return hot_prompt(
        seed, rate=rate, seconds=seconds, prefix=examples, share=1.0, own=own, answer=answer, block=block
    )


def fan_out(
    seed: int,
    *,
    rate: float,
    seconds: float,
    document: Range = (20_000, 60_000),
    questions: int = 8,
    within_s: float = 0.1,
    own: int = 200,
    answer: Range = (50, 300),
    block: int = BLOCK,
) -> Iterator[ReplayJob]:
    """A new document, asked several questions at once: map and reduce, best of n, parallel tools."""
    rng, prompts = random.Random(seed), _Prompts(block)
    jobs = []
    for at in _arrivals(rng, rate, seconds):
        blocks = prompts.fresh(rng.randint(*document))
        for _ in range(questions):
            prompt = prompts.prompt(blocks, own)
            jobs.append(ReplayJob(at + rng.random() * within_s, prompt, rng.randint(*answer)))
    return iter(sorted(jobs, key=lambda job: job.at))


def unique(
    seed: int,
    *,
    rate: float,
    seconds: float,
    mean: int = 2500,
    sigma: float = 1.0,
    most: int = 60_000,
    answer: int = 200,
    giants: float = 0.0,
    giant: Range = (60_000, 120_000),
    block: int = BLOCK,
) -> Iterator[ReplayJob]:
    """No reuse: prompts and answers with long tails, and a share of giants."""
    rng, prompts = random.Random(seed), _Prompts(block)
    for at in _arrivals(rng, rate, seconds):
        is_giant = rng.random() < giants
        num = rng.randint(*giant) if is_giant else _long_tailed(rng, mean, sigma, (50, most))
        yield ReplayJob(at, prompts.prompt([], num), _long_tailed(rng, answer, 0.8, (1, 2000)))


def chats(
    seed: int,
    *,
    starts: float,
    seconds: float,
    prefixes: int = 20,
    prefix: int = 3000,
    first: Range = (512, 60_000),
    first_mean: int = 6000,
    added: Range = (300, 2500),
    answer: Range = (30, 500),
    turns: float = 8.0,
    think_s: float = 5.0,
    most: int = 120_000,
    on_s: float = 0.0,
    block: int = BLOCK,
) -> Iterator[ReplayJob]:
    """Chats, or coding agents, of several turns behind one of some system prompts, the first ones much more
    popular. `starts` of them begin per second, with `on_s` only in every other period of that length."""
    rng, prompts = random.Random(seed), _Prompts(block)
    systems = [prompts.fresh(prefix) for _ in range(prefixes)]
    jobs = []
    for number, start in enumerate(_arrivals(rng, starts, seconds)):
        if on_s and (start // on_s) % 2:
            continue
        at, context = start, systems[min(int(rng.paretovariate(1.0)) - 1, prefixes - 1)]
        own = _long_tailed(rng, first_mean, 0.7, first)
        for turn in range(1, 2 + int(rng.expovariate(1 / turns))):
            if at > seconds or len(context) * block > most:
                break
            prompt, num_output = prompts.prompt(context, own), rng.randint(*answer)
            jobs.append(ReplayJob(at, prompt, num_output, turn, session=f"{number}"))
            context, own = prompts.whole(prompt), rng.randint(*added)
            at += num_output * 0.012 + 0.3 + rng.expovariate(1 / think_s)
    return iter(sorted(jobs, key=lambda job: job.at))
