"""Probe conversations cover every distinguished feature."""

import pytest

from gateway.tokenization.chat_template import Message, conversation
from gateway.tokenization.conversation_features import (
    CALLS,
    MARKED_CALL,
    ODD,
    REGULAR,
    SAID,
    TOLERABLE,
    UNUSUAL,
    USER,
    features,
    kind_of,
)
from gateway.tokenization.probe_conversations import (
    MAX_TURNS,
    STUBS,
    CutPoint,
    before_and_behind,
    behind_stub,
)
from gateway.tokenization.template_reading import Markup

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
    assert behind == sum(TOLERABLE)
    assert cut is CutPoint.LEAD or before == sum(TOLERABLE)
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


@pytest.mark.parametrize("cut", [CutPoint.TURN, CutPoint.STEP])
def test_each_feature_before_a_cut_is_tried_with_several_continuations(cut: CutPoint) -> None:
    """A template may change it once another question, a reply, or a call follows, or many turns later."""
    kinds: dict[int, set[tuple[str, ...]]] = {bit: set() for bit in TOLERABLE}
    for befores, afters in before_and_behind(cut, MARKUP.tried):
        for before in befores:
            found = features(seen(before), "", MARKUP)
            for bit in TOLERABLE:
                if found & bit:
                    kinds[bit] |= {tuple(map(kind_of, seen(after))) for after in afters}
    start = ("user",) if cut is CutPoint.TURN else ()
    calls, reply = (*start, "call", "tool"), (*start, "assistant", "user")
    for bit in TOLERABLE:
        assert {
            calls,
            reply,
            (*calls, "assistant", "user", *(("call", "tool") if not start else ())),
        } <= kinds[bit]
        assert max(map(len, kinds[bit])) > 6


@pytest.mark.parametrize("cut", [CutPoint.TURN, CutPoint.STEP])
@pytest.mark.parametrize("bit", TOLERABLE)
def test_each_feature_behind_a_cut_is_tried_alone(cut: CutPoint, bit: int) -> None:
    """Else a template that is refused one of them seems to be refused others."""
    kind = kind_of(seen(STUBS[cut])[-1])
    implied = USER | CALLS | (SAID if bit == MARKED_CALL else 0)
    afters = [after for _, some in before_and_behind(cut, MARKUP.tried) for after in some]
    found = {features(seen(after), kind, MARKUP) for after in afters}
    assert any(each & bit and each & ~implied == bit & ~implied for each in found)


@pytest.mark.parametrize("cut", [CutPoint.TURN, CutPoint.STEP])
def test_roles_that_may_follow_each_other_do_so_on_both_sides(cut: CutPoint) -> None:
    first = kind_of(seen(STUBS[cut])[-1])
    before, behind = set(), set()
    for befores, afters in before_and_behind(cut, ()):
        for run in map(seen, befores):
            before |= {*zip(["", *map(kind_of, run)], map(kind_of, run), strict=False)}
        for run in map(seen, afters):
            behind |= {*zip([first, *map(kind_of, run)], map(kind_of, run), strict=False)}
    assert before >= (REGULAR | UNUSUAL) - {("", "system")}
    assert behind >= {pair for pair in REGULAR | UNUSUAL if pair[0]}


def test_numbers_of_a_template_are_exceeded() -> None:
    for cut in CutPoint:
        groups = before_and_behind(cut, (), (MAX_TURNS - 1, 99))
        befores, afters = ([run for group in groups for run in group[side]] for side in (0, 1))
        assert max(map(len, afters)) > 2 * MAX_TURNS
        for runs in (befores, afters):
            assert max(len(message["content"] or "") for run in runs for message in run) == 100


def test_the_ids_of_calls_are_shared_by_both_sides_and_not_by_stubs() -> None:
    """A template that looks a call up would find the one of a stub, where there is none in a request."""

    def ids(run: list[Message]) -> set[str]:
        return {call["id"] for message in run for call in message.get("tool_calls", ())}

    groups = before_and_behind(CutPoint.STEP, ())
    before = {each for befores, _ in groups for run in befores for each in ids(run)}
    behind = {each for _, afters in groups for run in afters for each in ids(run)}
    assert before & behind and not (before | behind) & ids(STUBS[CutPoint.STEP])


def test_the_conversations_are_many_but_not_too_many() -> None:
    num = sum(
        len(befores) * len(afters)
        for cut in CutPoint
        for befores, afters in before_and_behind(cut, ("<t>", "<u>"))
    )
    assert 1_500 < num < 4_000
