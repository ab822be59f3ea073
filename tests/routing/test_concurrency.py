import math

import pytest

from gateway.core.worker import Reported
from gateway.routing.concurrency import IN_A_ROW, KEPT_S, LEAST, Seats


def told(seats: Seats, *running_and_waiting: tuple[int, int], now: float = 1.0) -> float:
    for running, waiting in running_and_waiting:
        seats.look(Reported(running, waiting), now)
    return seats.num


FULL = [(64, 5), (64, 9), (64, 2), (64, 1), (64, 30)]


def test_as_many_as_before_while_others_wait_are_all_there_are() -> None:
    seats = Seats()
    assert len(FULL) == IN_A_ROW + 1
    assert told(seats, *FULL[:-1]) == math.inf
    assert told(seats, FULL[-1]) == 64
    assert told(seats, (60, 0), (64, 0), (12, 0)) == 64  # it has as many while nobody uses them
    assert repr(seats) == "Seats(64)"


@pytest.mark.parametrize(
    "said",
    [
        [(64, 0)] * 9,  # nobody waits: as many as came
        [(number, 5) for number in range(60, 69)],  # waits for prompts before it
        [(LEAST - 1, 5)] * 9,
    ],
)
def test_what_else_it_could_be_tells_nothing(said: list[tuple[int, int]]) -> None:
    assert told(Seats(), *said) == math.inf


def test_more_than_were_believed_to_fit_end_the_belief() -> None:
    seats = Seats()
    told(seats, *FULL)
    assert told(seats, (65, 3)) == math.inf


def test_a_belief_that_nothing_confirms_ends() -> None:
    seats = Seats()
    told(seats, *FULL)
    assert told(seats, (3, 0), now=KEPT_S) == 64
    assert told(seats, (4, 0), now=KEPT_S + 2.0) == math.inf


def test_the_same_word_again_is_no_news() -> None:
    seats, said = Seats(), Reported(64, 5)
    for now in range(3 * IN_A_ROW):
        seats.look(said, float(now))
    assert seats.num == math.inf
