"""Traffic for prefill and decode workers, in virtual time: three mixes that differ in prompt and output.

code       long prompts, short answers, as of completions in an editor (Azure's code trace of 2023: some 2,000
           and 30 tokens): most work is prefill
chat       conversations of some turns: most of a prompt is cached from the turn before
reasoning  short prompts, long answers: most work is decode

Lengths are lognormal, sessions begin at random; those before the trace's begin have cached nothing.
"""

import math
import random
from array import array
from dataclasses import dataclass

from gateway.replay.job import HashedPrompt, ReplayJob

BLOCK_TOKENS = 64
TOKEN_S = 0.03
"""Time of an output token, for the next turn."""


@dataclass(frozen=True, slots=True)
class PdTraffic:
    """Means of tokens: of a first prompt, of what a later turn adds, and of an answer; with their spread in
    the logarithm. `pause_s` is between the turns."""

    name: str
    first: float
    later: float
    output: float
    turns: int = 1
    pause_s: float = 0.0
    prompt_sigma: float = 0.9
    output_sigma: float = 0.6

    def jobs(self, requests_per_s: float, seconds: float, seed: int = 1) -> list[ReplayJob]:
        """Return the requests of so many seconds, in order of arrival."""
        rng = random.Random(seed)
        began_s = -3.0 * self.turns * (self.pause_s + self.output * TOKEN_S) if self.turns > 1 else 0.0
        found: list[ReplayJob] = []
        number = 0
        while True:
            began_s += rng.expovariate(requests_per_s / self.turns)
            if began_s >= seconds:
                return sorted(found, key=lambda job: job.at)
            number += 1
            found += [job for job in self._session(rng, number, began_s) if 0.0 <= job.at < seconds]

    def _session(self, rng: random.Random, number: int, at: float) -> list[ReplayJob]:
        num_turns = 1 + min(int(rng.expovariate(1.0) * (self.turns - 0.5)), 4 * self.turns)
        found, num_tokens = [], 0
        hashes = array("q")
        for turn in range(1, num_turns + 1 if self.turns > 1 else 2):
            added, output = self.first if turn == 1 else self.later, self.output
            num_tokens += _length(rng, added, self.prompt_sigma, 40_000)
            num_output = _length(rng, output, self.output_sigma, 3_000)
            while len(hashes) < num_tokens // BLOCK_TOKENS:
                hashes.append((number << 32) + (turn << 20) + len(hashes))
            rest = [(number << 32) + (turn << 20) + (1 << 19)] if num_tokens % BLOCK_TOKENS else []
            prompt = HashedPrompt(hashes + array("q", rest), BLOCK_TOKENS, num_tokens)
            found.append(ReplayJob(at, prompt, num_output, turn, session=f"s{number}"))
            num_tokens += num_output
            at += num_output * TOKEN_S + rng.expovariate(1.0) * self.pause_s
        return found


CODE = PdTraffic("code", first=2000, later=0, output=30)
CHAT = PdTraffic("chat", first=1500, later=200, output=250, turns=4, pause_s=20.0)
REASONING = PdTraffic("reasoning", first=600, later=0, output=300, output_sigma=0.5)


def _length(rng: random.Random, mean: float, sigma: float, most: int) -> int:
    return int(min(max(rng.lognormvariate(math.log(mean) - sigma * sigma / 2.0, sigma), 1.0), most))
