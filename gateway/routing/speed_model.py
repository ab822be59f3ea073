"""What is learnt of each worker's pace from the requests that it answered.

    first token   start_s + answers that run there · start_seq_s
                  + tokens ahead and its own · (token_s + answers that run there · seq_s)
    the answer    its tokens · (step_s + answers that run there · step_seq_s) + prompt tokens that were
                  computed there meanwhile · harm_s

Each line is a least-squares fit per worker (`least_squares.py`). A worker of which nothing was seen, or
nothing lately,
is taken for one like the others: only those that are chosen are observed, and one that looked slow once must
be tried again.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple
from mypy_extensions import mypyc_attr

from gateway.core.speed import TYPICAL, Pace
from gateway.core.worker import Reported, WorkerId
from gateway.routing.concurrency import Seats
from gateway.routing.least_squares import Fit

PREFILL_TOKENS_PER_S = 20_000.0
"""The first estimate of a worker's speed: about an 8B model's on an H100."""
MIN_SEEN = 3.0
"""Observations from which a worker counts for what the others are taken for."""
UNKNOWN, LIKE_OTHERS = 2.0, 0.5
"""How far a worker may be from what is believed before anything was seen, and from what others are: as part
of it."""
REFRESH_S = 1.0
MOST_RUNNING = 100.0
"""That many answers that run slow a prompt token down by about itself: how uncertain that is."""
LEAST_TOKEN_S = 1e-7
ANSWER_STEP = 0.05
"""How much of what is believed of a worker's answers each new one renews."""


@mypyc_attr(acyclic=True)
class _Learnt:
    """Of one worker; `num_computed` counts the prompt tokens that it computed for us."""

    __slots__ = ("first", "rest", "num_computed", "answer_tokens", "seats", "pace")

    def __init__(self, pace: Pace, doubt: float) -> None:
        self.first = Fit(_first(pace), _first_spread(pace, doubt))
        self.rest = Fit(_rest(pace), _rest_spread(pace, doubt))
        self.num_computed = 0
        self.answer_tokens = pace.answer_tokens
        self.seats = Seats()
        self.pace = pace


class Paces:
    def __init__(self, prior: Pace = TYPICAL) -> None:
        self.typical = prior
        self._doubt = UNKNOWN
        self._known: dict[WorkerId, _Learnt] = {}
        self._refreshed_s = -REFRESH_S

    @staticmethod
    def of(prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S) -> "Paces":
        """With such a speed believed before anything is seen, and all else in proportion."""
        share = 1 / prefill_tokens_per_s / TYPICAL.token_s
        scaled = [share * field for field in (*_rest(TYPICAL), *_first(TYPICAL))]
        return Paces(_pace(scaled[3:], scaled[:3], TYPICAL.answer_tokens, TYPICAL.seats))

    def __repr__(self) -> str:
        return f"Paces({len(self._known)} known, typical {1 / self.typical.token_s:.0f} tokens/s)"

    def pace(self, worker: WorkerId) -> Pace:
        known = self._known.get(worker)
        return known.pace if known else self.typical

    def num_computed(self, worker: WorkerId) -> int:
        known = self._known.get(worker)
        return known.num_computed if known else 0

    def began(
        self, worker: WorkerId, num_ahead: int, num_tokens: int, num_running: int, seconds: float, now: float
    ) -> None:
        """A first token came so long after its request was sent, with that many tokens to compute before its
        own prompt's, and that many answers running there."""
        known = self._learnt(worker)
        known.num_computed += num_tokens
        if seconds > 0.0:
            work = num_ahead + num_tokens
            known.first.observe((1.0, work, work * num_running, num_running), seconds, now)
            _read(known)

    def computed(self, worker: WorkerId, num_tokens: int) -> None:
        """A prompt was computed, nobody knows how long it took."""
        self._learnt(worker).num_computed += num_tokens

    def ended(
        self,
        worker: WorkerId,
        num_tokens: int,
        num_running: float,
        num_computed: int,
        seconds: float,
        now: float,
    ) -> None:
        """An answer's tokens behind the first took so long, with so many others beside it on average;
        meanwhile others' prompts were computed."""
        if num_tokens > 0 and seconds > 0.0:
            known = self._learnt(worker)
            known.rest.observe((num_tokens, num_tokens * num_running, num_computed), seconds, now)
            known.answer_tokens += (num_tokens - known.answer_tokens) * ANSWER_STEP
            _read(known)

    def reported(self, worker: WorkerId, said: Reported, now: float) -> None:
        """The engine's own word, once a second."""
        if known := self._known.get(worker):
            known.seats.look(said, now)
            _read(known)

    def drop(self, worker: WorkerId) -> None:
        self._known.pop(worker, None)

    def refresh(self, now: float) -> bool:
        """Once a second: what is typical of them, and what is too long ago. True if it was done."""
        if now - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = now
        for known in self._known.values():
            known.first.forget(now)
            known.rest.forget(now)
        seen = [known.pace for known in self._known.values() if known.first.num_seen >= MIN_SEEN]
        if seen:
            self.typical, self._doubt = _middle(seen), LIKE_OTHERS
        for known in self._known.values():
            known.first.believe(_first(self.typical), _first_spread(self.typical, self._doubt))
            known.rest.believe(_rest(self.typical), _rest_spread(self.typical, self._doubt))
            _read(known)
        return True

    def _learnt(self, worker: WorkerId) -> _Learnt:
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = _Learnt(self.typical, self._doubt)
        return known


def _read(known: _Learnt) -> None:
    first, rest = known.first.weights, known.rest.weights
    known.pace = _pace(first, rest, known.answer_tokens, known.seats.num)


def _pace(first: Sequence[float], rest: Sequence[float], answer_tokens: float, seats: float) -> Pace:
    token_s = max(first[1], LEAST_TOKEN_S)
    return Pace(first[0], token_s, first[2], rest[0], rest[1], rest[2], first[3], answer_tokens, seats)


def _first(pace: Pace) -> tuple[float, float, float, float]:
    return pace.start_s, pace.token_s, pace.seq_s, pace.start_seq_s


def _rest(pace: Pace) -> tuple[float, float, float]:
    return pace.step_s, pace.step_seq_s, pace.harm_s


def _first_spread(pace: Pace, doubt: float) -> tuple[float, float, float, float]:
    start_s = doubt * pace.start_s + 0.005
    return start_s, doubt * pace.token_s, doubt * pace.token_s / MOST_RUNNING, start_s / MOST_RUNNING


def _rest_spread(pace: Pace, doubt: float) -> tuple[float, float, float]:
    return doubt * pace.step_s + 0.001, doubt * pace.step_s / MOST_RUNNING, doubt * pace.token_s


def _middle(paces: Iterable[Pace]) -> Pace:
    """Field by field the median: one that is broken does not count for the others."""
    columns = zip(*map(astuple, paces), strict=True)
    return Pace(*[sorted(column)[len(column) // 2] for column in columns])
