import pytest

from gateway.core.durations import has_unit, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300ms", 0.3),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (" 2 d ", 172800.0),
        ("250us", 0.00025),
        ("1h 5s", 3605.0),
        ("30", 30.0),
        ("0.5", 0.5),
        ("1e3", 1000.0),
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5 minutes", "m", "5mm", "-5m", "5M", "1h30", "5m x"])
def test_other_texts_are_refused(text: str) -> None:
    assert not has_unit(text)
    with pytest.raises(ValueError, match="is not a duration; give a number of seconds"):
        seconds_of(text)
