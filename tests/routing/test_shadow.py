import random
from collections.abc import Sequence

from msgspec.structs import replace

from gateway.core.decision import Candidate, Choice, Decision, Query
from gateway.policies.framework.guard import Faults, Guard
from gateway.routing import shadow as module
from gateway.routing.shadow import Comparison
from tests.support.fakes import decision

RNG = random.Random(1)


class Says:
    """An index, and perhaps a promise."""

    name = "says"

    def __init__(self, index: int, ttft_s: float | None = None) -> None:
        self.index, self.ttft_s = index, ttft_s

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        return Choice(self.index, "said", (), self.ttft_s)


def made(id: str = "d1") -> Decision:
    """Goes to the first of two; the second holds one token more."""
    some = decision(id, "a:1", "b:1")
    return replace(some, query=Query("m", 100), overlap_tokens=0)


def test_what_it_would_have_chosen_and_held() -> None:
    compared = Comparison(Says(0), Faults())
    compared.decided(made("d1"), RNG)
    compared.policy = Says(1)
    compared.decided(made("d2"), RNG)
    told = compared.describe()
    assert (told["compared"], told["agreed"], told["share_agreed"]) == (2, 1, 0.5)
    assert (told["compared_prompt_tokens"], told["shadow_overlap_tokens"], told["active_overlap_tokens"]) == (
        200,
        1,
        0,
    )


def test_promises_are_held_beside_what_came() -> None:
    compared = Comparison(Says(0, 1.0), Faults())
    for id, measured_s in (("d1", 2.0), ("d2", None)):
        compared.decided(made(id), RNG)
        compared.ended(made(id), measured_s)
        compared.ended(made(id), measured_s)  # once
    compared.policy = Says(1, 7.0)
    compared.decided(made("d3"), RNG)
    compared.ended(made("d3"), 2.0)
    told = compared.describe()
    assert (told["predicted_ttft_s"], told["measured_ttft_s"], told["prediction_error"]) == (4.0, 2.0, 0.5)


def test_where_it_fails_nothing_is_compared() -> None:
    faults = Faults()
    compared = Comparison(Guard("says", Says(5), 1.0, faults), faults)
    compared.decided(made(), RNG)
    assert (compared.describe()["compared"], compared.describe()["nonsense"]) == (0, 1)


def test_those_that_never_end_make_room(monkeypatch: object) -> None:
    compared = Comparison(Says(0, 1.0), Faults())
    for i in range(module.MAX_OPEN + 10):
        compared.decided(made(f"d{i}"), RNG)
    assert len(compared._open) == module.MAX_OPEN
    compared.ended(made("d0"), 1.0)
    assert compared.promises.num == 0
