"""One request of a trace, and what became of it."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core.blocks import Tokens
from gateway.core.decision import Decision
from gateway.core.worker import WorkerId
from gateway.observability.recording import Recorded

FILLING = 7
"""The token that hashed blocks are filled up with."""
MAX_TOKEN = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class HashedPrompt:
    """A prompt that is known by the chained hashes of its blocks of `block_size` tokens; the last one may be
    cut short. Its tokens are made up, equal where the hashes are: a hash of 64 bits is a block's first two
    tokens, and the hash of a block tells of all before it, so what follows them need not differ.
    """

    hashes: "array[int]"
    block_size: int
    num_tokens: int

    def __len__(self) -> int:
        return self.num_tokens

    def tokens(self) -> Tokens:
        """Each block's own; one that is too short for a hash has as much of it as there is room for, so that
        two of them may look alike that are not."""
        size = self.block_size
        if size < 2:
            return array("I", [block & MAX_TOKEN for block in self.hashes[: self.num_tokens]])
        filling = array("I", [FILLING]) * (size - 2)
        raw, rest = memoryview(self.hashes).cast("B"), filling.tobytes()
        tokens = array("I", b"".join([raw[at : at + 8].tobytes() + rest for at in range(0, len(raw), 8)]))
        del tokens[self.num_tokens :]
        return tokens


@dataclass(slots=True, eq=False)
class Job:
    """Seconds are from the trace's begin. `cached_tokens` as the engine tells them; `num_attempts` more than
    one where a worker went away with the request; `worker` computed its prompt. `recorded` is what a gateway
    saw of it, at the worker that is called `place` here."""

    at: float
    prompt: "array[int] | HashedPrompt"
    num_output: int
    turn: int = 1
    output: Sequence[int] = ()
    session: str | None = None
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

    def tokens(self) -> Tokens:
        """Made anew for a prompt that is hashed: a trace's tokens are too many to keep."""
        return self.prompt.tokens() if isinstance(self.prompt, HashedPrompt) else self.prompt

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.at

    @property
    def tpot_s(self) -> float:
        """Per token behind the first."""
        assert self.first_s is not None and self.last_s is not None
        return (self.last_s - self.first_s) / max(self.num_output - 1, 1)

    @property
    def e2e_s(self) -> float:
        assert self.last_s is not None
        return self.last_s - self.at

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        return self.last_s is not None and self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


def worker_of(number: int) -> WorkerId:
    """What a worker is called in virtual time."""
    return WorkerId(f"w{number}")
