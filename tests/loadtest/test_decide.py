from loadtest.decide import ASKED, DECIDE_GOALS_US, decide_us, router_of


def test_the_figure_is_of_a_decision_among_the_given_number() -> None:
    figure = decide_us(8, DECIDE_GOALS_US[8])
    assert (figure.name, figure.goal, len(figure.rounds)) == ("policy.decide_8_us", 15.0, 5)
    assert 0 < figure.value == round(min(figure.rounds), 3)


def test_workers_hold_different_parts_of_the_prompt() -> None:
    router, prompt = router_of(20)
    decision = router.decide(ASKED, prompt=prompt)
    assert len(decision.candidates) == 20
    assert len({candidate.overlap_tokens for candidate in decision.candidates}) == 10
