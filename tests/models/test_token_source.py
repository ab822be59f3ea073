"""Who makes the tokens, by what workers were found to make."""

import pytest

from gateway.models.token_parity import Judgement
from gateway.models.token_source import Judged, Maker, verdicts_of

TEXTS = {"a text": [1, 2, 3], "a chat": [4, 5]}
OURS = Judgement(TEXTS, 2)
OTHERS = Judgement({**TEXTS, "a chat": [4, 6]}, 2, "in a chat they differ")
THIRD = Judgement({"a text": [9], "a chat": [9]}, 2, "in a text they differ")
SILENT = Judgement({})
ALONE = Judgement(TEXTS)  # there is nothing of ours to compare
ALONE_OTHER = Judgement({**TEXTS, "a chat": [4, 6]})

L, R, N = Maker.LOCAL, Maker.REMOTE, Maker.NONE


@pytest.mark.parametrize(
    ("found", "way", "verdicts"),
    [
        ([], L, []),
        ([OURS], L, [L]),
        ([SILENT], L, [L]),
        ([OURS, SILENT], L, [L, L]),
        ([OURS, OTHERS], L, [L, N]),
        ([OURS, OURS, OTHERS, THIRD], L, [L, L, N, N]),
        ([OTHERS], R, [R]),
        ([OTHERS, SILENT], R, [R, R]),
        ([OTHERS, OTHERS, SILENT], R, [R, R, R]),
        ([OURS, OTHERS, OTHERS], R, [N, R, R]),
        ([OTHERS, THIRD, THIRD], R, [N, R, R]),
    ],
)
def test_with_a_tokenizer_here(found: list[Judgement], way: Maker, verdicts: list[Maker]) -> None:
    judged = {f"w:{number}": Judged(each) for number, each in enumerate(found)}
    told = verdicts_of(judged, has_local=True)
    assert (told[0], [verdict.maker for verdict in told[1].values()]) == (way, verdicts)


@pytest.mark.parametrize(
    ("found", "way", "verdicts"),
    [
        ([], R, []),
        ([ALONE], R, [R]),
        ([SILENT], N, [N]),
        ([ALONE, SILENT], R, [R, R]),
        ([ALONE_OTHER, ALONE, ALONE], R, [N, R, R]),
    ],
)
def test_without_one(found: list[Judgement], way: Maker, verdicts: list[Maker]) -> None:
    judged = {f"w:{number}": Judged(each) for number, each in enumerate(found)}
    told = verdicts_of(judged, has_local=False)
    assert (told[0], [verdict.maker for verdict in told[1].values()]) == (way, verdicts)


def test_a_broken_one_is_nobodys_until_it_is_put_right() -> None:
    way, verdicts = verdicts_of({"w:1": Judged(OURS)}, has_local=False, is_broken=True)
    assert way is N
    assert "broken" in verdicts["w:1"].why


def test_templates_that_tell_the_day_are_not_held_against_workers_that_joined_on_others() -> None:
    judged = {"w:1": Judged(ALONE, day=1), "w:2": Judged(ALONE_OTHER, day=2)}
    way, verdicts = verdicts_of(judged, has_local=False)
    assert [verdict.maker for verdict in verdicts.values()] == [R, R]
    judged = {name: Judged(each.judgement, day=1) for name, each in judged.items()}
    assert [verdict.maker for verdict in verdicts_of(judged, has_local=False)[1].values()] == [R, N]


def test_each_verdict_has_its_reason() -> None:
    judged = {"w:1": Judged(OURS), "w:2": Judged(OTHERS), "w:3": Judged(SILENT)}
    whys = [verdict.why for verdict in verdicts_of(judged, has_local=True)[1].values()]
    assert whys == [
        "equal in all 2 prompts that both tokenized",
        "in a chat they differ",
        "not compared: its /tokenize does not answer",
    ]
    whys = [verdict.why for verdict in verdicts_of({"w:3": Judged(SILENT)}, has_local=False)[1].values()]
    assert whys == ["no tokenizer is found for it, and its own /tokenize does not answer"]
