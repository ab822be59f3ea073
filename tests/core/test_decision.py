from gateway.core.value import replace
from tests.support.fakes import decision


def test_uncached_tokens_are_those_without_overlap() -> None:
    made = decision("d1", "a:1", "b:1")
    assert (made.num_tokens, made.overlap_tokens, made.uncached_tokens) == (100, 64, 36)


def test_a_candidate_is_named_as_its_worker() -> None:
    assert [candidate.id for candidate in decision("d1", "a:1", "b:1").candidates] == ["a:1", "b:1"]


def test_a_decision_is_exact_as_its_chosen_worker_is() -> None:
    made = decision("d1", "a:1", "b:1")  # events of the first are all known
    assert made.is_exact
    assert not replace(made, worker=made.candidates[1].worker).is_exact
    assert not replace(made, candidates=()).is_exact
