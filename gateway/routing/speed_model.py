"""Speed model of each worker, learnt from the requests that it answered.

    first token   start_s + answers that run there · start_seq_s
                  + tokens ahead and its own · (token_s + answers that run there · seq_s)
    the answer    its tokens · (step_s + answers that run there · step_seq_s) + prompt tokens that were
                  computed there meanwhile · harm_s

Each line is a least-squares fit per worker (`least_squares.py`). A worker without observations, with few, or
without recent ones is assumed to be like the others: only chosen workers are observed, and one that looked
slow once must be tried again. Once the speed of some worker is known, what little was seen of the others is
forgotten: it was weighed against a guess, and may have been a cold start.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.speed import TYPICAL, Speed
from gateway.core.value import astuple
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.routing.concurrency import ConcurrencyLimit
from gateway.routing.least_squares import MIN_APART, LeastSquares

PREFILL_TOKENS_PER_S: Final = 20_000.0
"""The first estimate of a worker's speed: about an 8B model's on an H100."""
UNKNOWN: Final = 2.0
LIKE_OTHERS: Final = 0.5
"""Relative spread of a worker's speed around the configured prior, and around the typical worker."""
REFRESH_S: Final = 1.0
MOST_RUNNING: Final = 100.0
"""Spread of the slowdown by running answers: this many of them about double the time of a prompt token."""
LEAST_TOKEN_S: Final = 1e-7
ANSWER_STEP: Final = 0.01
PRIOR_ANSWERS: Final = 4
"""Weight of one answer in the moving average of answer lengths, which vary much: some long answers by chance
must not make a worker look slower. The first answers count more, as if a few had been seen before."""
COMPUTES: Final = 2.0
"""Requests wait for prompts where these take longer than so many times the ends of enough answers."""
GAP_STEP: Final = 0.05
"""Weight of one answer in the moving average of the gaps between tokens, which vary little."""


@mypyc_attr(acyclic=True)
class _WorkerSpeed:
    """The fits of one worker; `num_computed` counts the prompt tokens that it computed for this gateway."""

    __slots__ = (
        "first",
        "rest",
        "num_computed",
        "num_answers",
        "answer_tokens",
        "gap_s",
        "max_running",
        "speed",
    )

    def __init__(self, speed: Speed, doubt: float) -> None:
        self.first = LeastSquares(_first(speed), _first_spread(speed, doubt))
        self.rest = LeastSquares(_rest(speed), _rest_spread(speed, doubt))
        self.num_computed = 0
        self.num_answers = 0
        self.answer_tokens = speed.answer_tokens
        self.gap_s = speed.gap_s
        self.max_running = ConcurrencyLimit()
        self.speed = speed
        self.believe(speed, doubt)

    @property
    def is_seen(self) -> bool:
        """True if enough was seen for the worker to count for the typical speed."""
        return self.first.num_apart >= MIN_APART

    def believe(self, typical: Speed, doubt: float) -> None:
        """Set the speed that holds where there are no observations."""
        is_learnt = doubt < UNKNOWN
        self.first.believe(_first(typical), _first_spread(typical, doubt), is_learnt=is_learnt)
        self.rest.believe(_rest(typical), _rest_spread(typical, doubt), is_learnt=is_learnt)

    def restart(self) -> None:
        self.first.restart()
        self.rest.restart()


class SpeedModels:
    def __init__(self, prior: Speed = TYPICAL) -> None:
        self.typical = prior
        self._doubt = UNKNOWN
        self._known: dict[WorkerId, _WorkerSpeed] = {}
        self._refreshed_s = -REFRESH_S

    @staticmethod
    def of(prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S) -> "SpeedModels":
        """Return models with this prefill speed as the prior, and all else in proportion."""
        share = 1 / prefill_tokens_per_s / TYPICAL.token_s
        scaled = [share * field for field in (*_rest(TYPICAL), *_first(TYPICAL))]
        return SpeedModels(_speed(scaled[3:], scaled[:3], TYPICAL.answer_tokens, 0.0, TYPICAL.max_running))

    def __repr__(self) -> str:
        return f"SpeedModels({len(self._known)} known, typical {1 / self.typical.token_s:.0f} tokens/s)"

    def speed(self, worker: WorkerId) -> Speed:
        known = self._known.get(worker)
        return known.speed if known else self.typical

    def num_computed(self, worker: WorkerId) -> int:
        known = self._known.get(worker)
        return known.num_computed if known else 0

    def began(
        self, worker: WorkerId, num_ahead: int, num_tokens: int, num_running: int, seconds: float, now: float
    ) -> None:
        """Learn from a first token, `seconds` after its request was sent, with `num_ahead` tokens to compute
        before its prompt and `num_running` answers running there."""
        known = self._learnt(worker)
        known.num_computed += num_tokens
        if seconds > 0.0:
            work = num_ahead + num_tokens
            known.first.observe((1.0, work, work * num_running, num_running), seconds, now)
            self._read(known)

    def computed(self, worker: WorkerId, num_tokens: int) -> None:
        """Count a prompt that was computed in an unknown time."""
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
        """Learn from an answer: its tokens after the first took `seconds`, with `num_running` other answers
        on average, while `num_computed` tokens of other prompts were computed."""
        if num_tokens > 0 and seconds > 0.0:
            known = self._learnt(worker)
            known.rest.observe((num_tokens, num_tokens * num_running, num_computed), seconds, now)
            known.num_answers += 1
            step = max(ANSWER_STEP, 1.0 / (known.num_answers + PRIOR_ANSWERS))
            known.answer_tokens += (num_tokens - known.answer_tokens) * step
            known.gap_s += (seconds / num_tokens - known.gap_s) * GAP_STEP
            self._read(known)

    def reported(
        self,
        worker: WorkerId,
        load: ReportedLoad,
        now: float,
        booked_tokens: int = 0,
        max_running: int | None = None,
    ) -> None:
        """Learn from the engine's own report, once a second; `booked_tokens` are still to be computed there,
        and `max_running` is its concurrency limit, where it reports that."""
        if known := self._known.get(worker):
            is_computing = load.num_waiting > 0 and _computes(known.speed, load, booked_tokens)
            known.max_running.look(load, now, max_running, is_computing=is_computing)
            self._read(known)

    def drop(self, worker: WorkerId) -> None:
        self._known.pop(worker, None)

    def refresh(self, now: float) -> bool:
        """Update the typical worker and discount old observations, once a second. True if it was done."""
        if now - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = now
        for known in self._known.values():
            known.first.forget(now)
            known.rest.forget(now)
        seen = [known.speed for known in self._known.values() if known.is_seen]
        if seen:
            if self._doubt == UNKNOWN:
                self._restart_little_seen()
            self.typical, self._doubt = _middle(seen), LIKE_OTHERS
        for known in self._known.values():
            known.believe(self.typical, self._doubt)
            self._read(known)
        return True

    def _restart_little_seen(self) -> None:
        for known in self._known.values():
            if not known.is_seen:
                known.restart()

    def _learnt(self, worker: WorkerId) -> _WorkerSpeed:
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = _WorkerSpeed(self.typical, self._doubt)
        return known

    def _read(self, known: _WorkerSpeed) -> None:
        if known.is_seen or self._doubt == UNKNOWN:
            first: Sequence[float] = known.first.weights
            rest: Sequence[float] = known.rest.weights
        else:
            first, rest = _first(self.typical), _rest(self.typical)
        limit = known.max_running.num
        known.speed = _speed(first, rest, known.answer_tokens, known.gap_s, limit)


def _computes(speed: Speed, load: ReportedLoad, booked_tokens: int) -> bool:
    """True if requests wait for prompts before them rather than for answers to end."""
    ahead_s: float = booked_tokens * (speed.token_s + load.num_running * speed.seq_s)
    interval_s: float = speed.interval_s(max(load.num_running, 1))
    return ahead_s > COMPUTES * load.num_waiting * interval_s


def _speed(
    first: Sequence[float], rest: Sequence[float], answer_tokens: float, gap_s: float, max_running: float
) -> Speed:
    return Speed(
        first[0],
        max(first[1], LEAST_TOKEN_S),
        first[2],
        rest[0],
        rest[1],
        rest[2],
        first[3],
        answer_tokens,
        max_running,
        gap_s,
    )


def _first(speed: Speed) -> tuple[float, float, float, float]:
    return speed.start_s, speed.token_s, speed.seq_s, speed.start_seq_s


def _rest(speed: Speed) -> tuple[float, float, float]:
    return speed.step_s, speed.step_seq_s, speed.harm_s


def _first_spread(speed: Speed, doubt: float) -> tuple[float, float, float, float]:
    start_s = doubt * speed.start_s + 0.005
    return start_s, doubt * speed.token_s, doubt * speed.token_s / MOST_RUNNING, start_s / MOST_RUNNING


def _rest_spread(speed: Speed, doubt: float) -> tuple[float, float, float]:
    return doubt * speed.step_s + 0.001, doubt * speed.step_s / MOST_RUNNING, doubt * speed.token_s


def _middle(speeds: Iterable[Speed]) -> Speed:
    """Return the median of each field, so that a broken worker does not count for the others. Of two workers,
    the slower one must not be typical itself."""
    columns = zip(*map(astuple, speeds), strict=True)
    return Speed(*[sorted(column)[(len(column) - 1) // 2] for column in columns])
