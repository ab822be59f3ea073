"""Token sources, chosen by workers' parity results."""

import pytest

from gateway.parity.comparison import ParityResult
from gateway.parity.token_source import TokenSource, WorkerParity, choose_sources, follow_other

TEXTS = {"a text": [1, 2, 3], "a chat": [4, 5]}
OURS = ParityResult(TEXTS, 2)
OTHERS = ParityResult({**TEXTS, "a chat": [4, 6]}, 2, "in a chat they differ")
THIRD = ParityResult({"a text": [9], "a chat": [9]}, 2, "in a text they differ")
SILENT = ParityResult({})
ALONE = ParityResult(TEXTS)  # there are no local tokens to compare
ALONE_OTHER = ParityResult({**TEXTS, "a chat": [4, 6]})

L, R, N = TokenSource.LOCAL, TokenSource.REMOTE, TokenSource.NONE


@pytest.mark.parametrize(
    ("found", "way", "choices"),
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
def test_token_sources_with_a_local_tokenizer(
    found: list[ParityResult], way: TokenSource, choices: list[TokenSource]
) -> None:
    checked = {f"w:{number}": WorkerParity(each) for number, each in enumerate(found)}
    status = choose_sources(checked, has_local=True)
    assert (status[0], [choice.token_source for choice in status[1].values()]) == (way, choices)


@pytest.mark.parametrize(
    ("found", "way", "choices"),
    [
        ([], R, []),
        ([ALONE], R, [R]),
        ([SILENT], N, [N]),
        ([ALONE, SILENT], R, [R, R]),
        ([ALONE_OTHER, ALONE, ALONE], R, [N, R, R]),
    ],
)
def test_token_sources_without_a_local_tokenizer(
    found: list[ParityResult], way: TokenSource, choices: list[TokenSource]
) -> None:
    checked = {f"w:{number}": WorkerParity(each) for number, each in enumerate(found)}
    status = choose_sources(checked, has_local=False)
    assert (status[0], [choice.token_source for choice in status[1].values()]) == (way, choices)


def test_a_broken_tokenizer_leaves_no_source_until_repaired() -> None:
    way, choices = choose_sources({"w:1": WorkerParity(OURS)}, has_local=False, is_broken=True)
    assert way is N
    assert "broken" in choices["w:1"].why


def test_workers_that_joined_on_another_day_are_not_compared_by_dated_templates() -> None:
    checked = {"w:1": WorkerParity(ALONE, day=1), "w:2": WorkerParity(ALONE_OTHER, day=2)}
    way, choices = choose_sources(checked, has_local=False)
    assert [choice.token_source for choice in choices.values()] == [R, R]
    checked = {name: WorkerParity(each.parity, day=1) for name, each in checked.items()}
    assert [choice.token_source for choice in choose_sources(checked, has_local=False)[1].values()] == [R, N]


def test_each_verdict_has_its_reason() -> None:
    checked = {"w:1": WorkerParity(OURS), "w:2": WorkerParity(OTHERS), "w:3": WorkerParity(SILENT)}
    whys = [choice.why for choice in choose_sources(checked, has_local=True)[1].values()]
    assert whys == [
        "equal in all 2 prompts that both tokenized",
        "in a chat they differ",
        "not compared: the worker's /tokenize does not answer",
    ]
    whys = [
        choice.why for choice in choose_sources({"w:3": WorkerParity(SILENT)}, has_local=False)[1].values()
    ]
    assert whys == ["no tokenizer found, and the worker's /tokenize does not answer"]


@pytest.mark.parametrize(
    ("found", "by_other", "follows"),
    [
        ([OTHERS], [OURS], True),
        ([OTHERS], [OTHERS], False),
        ([OURS, OTHERS], [OTHERS, OURS], False),
        ([OURS, OTHERS, OTHERS], [OTHERS, OURS, OURS], True),
        ([OURS, SILENT], [OTHERS, SILENT], False),
        ([SILENT], [SILENT], False),
        ([], [], False),
    ],
)
def test_other_reading_of_a_tokenizer_is_followed_where_more_workers_agree_with_it(
    found: list[ParityResult], by_other: list[ParityResult], *, follows: bool
) -> None:
    one, other = (
        {f"w:{number}": WorkerParity(each) for number, each in enumerate(results)}
        for results in (found, by_other)
    )
    assert follow_other(one, other) is follows
