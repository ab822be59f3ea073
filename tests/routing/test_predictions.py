import logging

import pytest

from gateway.routing.predictions import FEWEST, NUM, Predictions


def came(predictions: Predictions, num: int, predicted_s: float, actual_s: float) -> None:
    for _ in range(num):
        predictions.came(predicted_s, actual_s)


@pytest.mark.parametrize(("predicted_s", "actual_s"), [(0.2, 2.0), (2.0, 0.2), (0.0, 1.0), (1e9, 0.0)])
def test_predictions_that_are_far_off_are_not_relied_on_until_they_are_right(
    predicted_s: float, actual_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    predictions = Predictions()
    came(predictions, FEWEST - 1, predicted_s, actual_s)
    assert predictions.holds
    came(predictions, 1, predicted_s, actual_s)
    assert not predictions.holds
    came(predictions, NUM, predicted_s, actual_s)
    came(predictions, 3 * NUM // 4, 1.0, 1.2)
    assert not predictions.holds
    came(predictions, 1, 1.0, 1.2)
    assert predictions.holds
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "64 of the latest 64 are off by more than a factor of 3" in caplog.text


def test_some_wrong_ones_and_short_times_change_nothing() -> None:
    """A worker that stalls makes some predictions wrong; people do not notice 60 ms instead of 5."""
    predictions = Predictions()
    for _ in range(NUM):
        came(predictions, 1, 0.2, 9.0)
        came(predictions, 2, 0.005, 0.06)
    assert predictions.holds
