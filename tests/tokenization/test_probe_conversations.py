"""Probe conversations cover every distinguished feature."""

import pytest

from gateway.tokenization import template_stability
from gateway.tokenization.chat_template import Message, conversation
from gateway.tokenization.probe_conversations import STUBS, CutPoint, before_and_behind, behind_stub
from gateway.tokenization.template_stability import ODD, REGULAR, Markup, features, kind_of

MARKUP = Markup(("<t>",), ("<t>",))


def seen(messages: list[Message]) -> list[Message]:
    return conversation(messages, "string")


@pytest.mark.parametrize("cut", CutPoint)
def test_each_feature_occurs_before_and_after_a_cut(cut: CutPoint) -> None:
    before = behind = 0
    for befores, afters in before_and_behind(cut, MARKUP.tried):
        for each in befores:
            before |= features(seen(each), "", MARKUP)
        for each in afters:
            behind |= features(seen(each), kind_of(seen(STUBS[cut])[-1]), MARKUP)
    assert behind == sum(template_stability.TOLERABLE)
    assert cut is CutPoint.LEAD or before == sum(template_stability.TOLERABLE)
    assert not (before | behind) & ODD


@pytest.mark.parametrize("cut", CutPoint)
def test_messages_around_a_cut_match_it(cut: CutPoint) -> None:
    expected = {CutPoint.LEAD: ("system", "user")}.get(
        cut, ("tool" if cut >= CutPoint.STEP else "assistant", None)
    )
    heads = {"assistant", "call"} if cut >= CutPoint.STEP else {"user"}
    for befores, afters in before_and_behind(cut, MARKUP.tried):
        assert {kind_of(seen(each)[-1]) for each in befores} == {expected[0]}
        assert {kind_of(seen(each)[0]) for each in afters} <= heads
        is_led = cut in (CutPoint.LEAD, CutPoint.TURN_LED, CutPoint.STEP_LED)
        assert all((each[0]["role"] == "system") is is_led for each in befores)
    assert all(
        (kind_of(seen(STUBS[cut])[-1]), kind_of(seen(each)[0])) in REGULAR for each in behind_stub(cut)
    )


def test_the_conversations_are_many_but_not_too_many() -> None:
    num = sum(
        len(befores) * len(afters)
        for cut in CutPoint
        for befores, afters in before_and_behind(cut, ("<t>", "<u>"))
    )
    assert 500 < num < 1_500
