"""Request of a trace, and its outcome."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.blocks import Tokens
from gateway.core.decision import Decision
from gateway.core.worker import WorkerId
from gateway.observability.recording import Recorded

MODEL = "m"
"""Name of a trace's first or only model; the others count as its adapters."""
FILLING = 7
"""Token that fills up hashed blocks."""
MAX_TOKEN = (1 << 31) - 1
MAX_TOKENS = 1 << 24
"""Tokens of one prompt or answer: more than any model's context."""
MAX_CLOCK_S = 1e11
"""Latest recorded time in seconds: about the year 5000."""


@dataclass(frozen=True, slots=True)
class HashedPrompt:
    """Prompt known by the chained hashes of its blocks of `block_size` tokens; the last one may be shorter.
    Its tokens are made up, equal where the hashes are: a hash of 64 bits becomes a block's first two tokens,
    and the hash covers all blocks before, so the tokens after it need not differ."""

    hashes: "array[int]"
    block_size: int
    num_tokens: int

    def __len__(self) -> int:
        return self.num_tokens

    def tokens(self) -> Tokens:
        """Tokens of all blocks; a block that is too short for a hash has as much of it as there is room for,
        so that two different ones may look alike."""
        size = self.block_size
        if size < 2:
            return array("I", [block & MAX_TOKEN for block in self.hashes[: self.num_tokens]])
        filling = array("I", [FILLING]) * (min(size, self.num_tokens) - 2)
        num_blocks = -(-self.num_tokens // size)
        raw, rest = memoryview(self.hashes).cast("B")[: 8 * num_blocks], filling.tobytes()
        tokens = array("I", b"".join([raw[at : at + 8].tobytes() + rest for at in range(0, len(raw), 8)]))
        del tokens[self.num_tokens :]
        return tokens


@dataclass(slots=True, eq=False)
class ReplayJob:
    """Request and its outcome. Seconds are from the trace's begin. `cached_tokens` as the engine reports
    them; `num_attempts` is more than one where a worker went away with the request; `worker` computed its
    prompt. Each `model` has cache entries of its own. `recorded` is a gateway's record of it, at the worker
    that is called `place` here."""

    at: float
    prompt: "array[int] | HashedPrompt"
    num_output: int
    turn: int = 1
    output: Sequence[int] = ()
    session: str | None = None
    model: str = MODEL
    first_s: float | None = None
    last_s: float | None = None
    cached_tokens: int = 0
    is_split: bool = False
    decision: Decision | None = None
    num_attempts: int = field(default=0, repr=False)
    worker: WorkerId | None = None
    recorded: Recorded | None = field(default=None, repr=False)
    place: WorkerId | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt)

    @property
    def adapter(self) -> str | None:
        return adapter_of(self.model)

    def tokens(self) -> Tokens:
        """Tokens of the prompt, made again at each call if it is hashed: a trace's tokens are too many to
        keep."""
        return self.prompt.tokens() if isinstance(self.prompt, HashedPrompt) else self.prompt

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.at

    @property
    def tpot_s(self) -> float:
        """Seconds per token behind the first."""
        assert self.first_s is not None and self.last_s is not None
        return (self.last_s - self.first_s) / max(self.num_output - 1, 1)

    @property
    def e2e_s(self) -> float:
        assert self.last_s is not None
        return self.last_s - self.at

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        return self.last_s is not None and self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


def adapter_of(model: str) -> str | None:
    """Adapter that a model is in virtual time."""
    return None if model == MODEL else model


def worker_of(number: int) -> WorkerId:
    """Name of a worker in virtual time."""
    return WorkerId(f"w{number}")
