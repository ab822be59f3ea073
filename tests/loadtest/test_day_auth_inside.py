"""Cost of a key, inside one process: each gateway does the measured work."""

from pathlib import Path

import pytest

from loadtest.day_auth import KEYED, PLAIN, SALTED, made_in
from loadtest.day_auth_inside import ROUNDS, configs_of, measured
from loadtest.instruments import BenchError


@pytest.mark.process
async def test_all_three_gateways_answer_and_are_timed(tmp_path: Path) -> None:
    key, file, secret = made_in(tmp_path)
    rounds = await measured(key, configs_of(file, secret), num_slices=2, num_requests=5)
    assert len(rounds) == ROUNDS
    for each in rounds:
        assert set(each) == {PLAIN, KEYED, SALTED} and all(each.values())


@pytest.mark.process
async def test_a_key_that_is_not_looked_up_has_no_figure(tmp_path: Path) -> None:
    _, file, secret = made_in(tmp_path)
    configs = configs_of(file, secret)
    with pytest.raises(BenchError, match="answered b'HTTP/1.1 401"):
        await measured("kvg-unknown", {KEYED: configs[KEYED]}, num_slices=1, num_requests=1)
