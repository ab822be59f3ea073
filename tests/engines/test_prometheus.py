"""Lines of a metrics page, found without parsing the rest."""

import pytest

from engines.prometheus import MAX_SAMPLES, integer, label, series

PAGE = """\
# TYPE a:x gauge
a:x{r="0",m="one, r=\\"9\\""} 3.0
a:x{m="two",r="1"} 1e1
a:x{r="2"} NaN
a:x{r="3"} what
a:x_total{r="0"} 8
a:bare 2.5"""


def test_samples_of_one_name_are_found() -> None:
    assert [(label(labels, "r"), value) for labels, value in series(PAGE, "a:x{")] == [
        ("0", 3.0),
        ("1", 10.0),
    ]
    assert [value for _, value in series(PAGE, "a:bare ")] == [2.5]
    assert list(series(PAGE, "a:y{")) == list(series("", "a:x{")) == []
    assert [value for _, value in series('a:x{r="1"} 4', "a:x{")] == [4.0]


def test_labels_are_found_by_their_whole_name() -> None:
    assert label('{rank="7",k="v"}', "rank") == "7"
    assert label('{dp_rank="7"}', "rank") is None
    assert label("", "rank") is None


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), ("", None), (None, None), ("1.5", None), ("²", None)]
)
def test_integers_are_read(text: str | None, number: int | None) -> None:
    assert integer(text) == number


def test_too_many_samples_are_rejected_by_name() -> None:
    page = 'm{engine="0"} 1\n' * (MAX_SAMPLES + 1)
    assert len(list(series(page[: -len('m{engine="0"} 1\n')], "m{"))) == MAX_SAMPLES
    with pytest.raises(ValueError, match="more than 4,096 samples of m"):
        list(series(page, "m{"))
