"""Speed model of each worker, learnt from the requests that it answered.

    first token   start_s + answers that run there · start_seq_s
                  + tokens ahead and its own · (token_s + answers that run there · seq_s)
    the answer    its tokens · (step_s + answers that run there · step_seq_s) + prompt tokens that were
                  computed there meanwhile · harm_s

Each line is a least-squares fit per worker (`least_squares.py`), beside one of all workers
(`fleet_fit.py`): a worker without observations, with few, or without recent ones is assumed to be like the
others. Only chosen workers are observed, and one that looked slow once must be tried again.
"""

import math
from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.speed import TYPICAL, Speed
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.routing.concurrency import ConcurrencyLimit
from gateway.routing.fleet_fit import FleetFit
from gateway.routing.least_squares import LeastSquares

PREFILL_TOKENS_PER_S: Final = 20_000.0
"""The first estimate of a worker's speed: about an 8B model's on an H100."""
REFRESH_S: Final = 1.0
MOST_RUNNING: Final = 100.0
"""Spread of the slowdown by running answers: this many of them about double the time of a step."""
MOST_PER_TOKEN: Final = 500.0
"""The same for a prompt token: the running answers take their tokens from the same steps."""
STEP_TOKENS: Final = 200.0
"""Prompt tokens that take about as long as a step: for the spread of what one of them delays an answer by."""
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
    """The fits of one worker; `num_computed` counts the prompt tokens that it computed for this gateway, and
    `computed_squares` adds up their squares by prompt."""

    __slots__ = (
        "first",
        "rest",
        "num_computed",
        "computed_squares",
        "num_answers",
        "answer_tokens",
        "gap_s",
        "max_running",
        "speed",
    )

    def __init__(self, speed: Speed, first: LeastSquares, rest: LeastSquares) -> None:
        self.first = first
        self.rest = rest
        self.num_computed = 0
        self.computed_squares = 0.0
        self.num_answers = 0
        self.answer_tokens = speed.answer_tokens
        self.gap_s = speed.gap_s
        self.max_running = ConcurrencyLimit()
        self.speed = speed


class SpeedModels:
    """The speed models of one gateway's workers. `prior` holds before any observation."""

    def __init__(self, prior: Speed = TYPICAL) -> None:
        self.typical = prior
        self._first = FleetFit(_first(prior), _first_spread)
        self._rest = FleetFit(_rest(prior), _rest_spread)
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

    def computed_squares(self, worker: WorkerId) -> float:
        known = self._known.get(worker)
        return known.computed_squares if known else 0.0

    def began(
        self, worker: WorkerId, num_ahead: int, num_tokens: int, num_running: int, seconds: float, now: float
    ) -> None:
        """Learn from a first token, `seconds` after its request was sent, with `num_ahead` tokens to compute
        before its prompt and `num_running` answers running there."""
        known = self._learnt(worker)
        known.num_computed += num_tokens
        known.computed_squares += float(num_tokens) * num_tokens
        if seconds > 0.0:
            work = num_ahead + num_tokens
            seen = 1.0, work, work * num_running, num_running
            self._first.observe(known.first, seen, seconds, now)
            if not self._first.is_known:
                self._refreshed_s = -REFRESH_S  # the next decision sees it
            self._read(known)

    def computed(self, worker: WorkerId, num_tokens: int) -> None:
        """Count a prompt that was computed in an unknown time."""
        known = self._learnt(worker)
        known.num_computed += num_tokens
        known.computed_squares += float(num_tokens) * num_tokens

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
            seen = num_tokens, num_tokens * num_running, num_computed
            self._rest.observe(known.rest, seen, seconds, now)
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

    def admitted(self, worker: WorkerId, num_decoding: int, num_waiting: int, now: float) -> None:
        """Learn the concurrency limit from a first token: so many answers run, and so many requests wait."""
        self._learnt(worker).max_running.began(num_decoding, num_waiting, now)

    def drop(self, worker: WorkerId) -> None:
        self._known.pop(worker, None)

    def refresh(self, now: float) -> bool:
        """Update the typical worker and discount old observations, once a second. True if it was done."""
        if now - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = now
        workers = list(self._known.values())
        self._first.refresh([known.first for known in workers], now)
        self._rest.refresh([known.rest for known in workers], now)
        for known in workers:
            self._read(known)
        if workers:
            answers, gaps = [known.answer_tokens for known in workers], [known.gap_s for known in workers]
            self.typical = _speed(self._first.typical, self._rest.typical, _middle(answers), _middle(gaps))
        return True

    def _learnt(self, worker: WorkerId) -> _WorkerSpeed:
        known = self._known.get(worker)
        if known is None:
            known = self._known[worker] = _WorkerSpeed(self.typical, self._first.new(), self._rest.new())
        return known

    def _read(self, known: _WorkerSpeed) -> None:
        first, rest = self._first.weights(known.first), self._rest.weights(known.rest)
        known.speed = _speed(first, rest, known.answer_tokens, known.gap_s, known.max_running.num)


def _computes(speed: Speed, load: ReportedLoad, booked_tokens: int) -> bool:
    """True if requests wait for prompts before them rather than for answers to end."""
    ahead_s: float = booked_tokens * (speed.token_s + load.num_running * speed.seq_s)
    interval_s: float = speed.interval_s(max(load.num_running, 1))
    return ahead_s > COMPUTES * load.num_waiting * interval_s


def _speed(
    first: Sequence[float],
    rest: Sequence[float],
    answer_tokens: float,
    gap_s: float,
    max_running: float = math.inf,
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


def _first_spread(weights: Sequence[float], doubt: float) -> tuple[float, float, float, float]:
    start_s, token_s = doubt * weights[0] + 0.005, doubt * weights[1]
    return start_s, token_s, token_s / MOST_PER_TOKEN, start_s / MOST_RUNNING


def _rest_spread(weights: Sequence[float], doubt: float) -> tuple[float, float, float]:
    step_s = doubt * weights[0]
    return step_s + 0.001, step_s / MOST_RUNNING, step_s / STEP_TOKENS


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
