"""Differences of two configurations: live options, options that need a restart, and their log lines."""

import pytest

from gateway.config import config_of
from gateway.config.diff import compare
from gateway.core.errors import ConfigError


def test_live_options_are_separated_from_those_that_need_a_restart() -> None:
    old = config_of(port=1, idle_timeout_s=5.0, policy="auto")
    found = compare(old, config_of(port=2, idle_timeout_s=6.0, policy="auto"))
    assert (found.live, found.restart) == (["idle_timeout_s"], ["port"])
    taken = found.applied_to(old)
    assert (taken.server.port, taken.proxy.idle_timeout_s) == (1, 6.0)


def test_values_derived_at_the_start_are_kept() -> None:
    found = compare(config_of(redis="embedded"), config_of(redis="embedded", max_attempts=9))
    in_use = found.applied_to(config_of(redis="unix:///tmp/socket"))
    assert (in_use.redis.url, in_use.proxy.max_attempts) == ("unix:///tmp/socket", 9)


def test_workers_are_compared_by_their_normalized_urls() -> None:
    old = config_of(worker=["http://a:1/", "http://b:1"], prefill=["http://p:1"])
    found = compare(old, config_of(worker=["http://a:1", "http://c:1"], decode=["http://p:1"]))
    assert found.added == ["http://c:1", "decode=http://p:1"]
    assert found.dropped == ["http://b:1", "prefill=http://p:1"]


def test_an_invalid_worker_is_rejected() -> None:
    with pytest.raises(ConfigError, match="worker: .*not an http"):
        compare(config_of(), config_of(worker=["10.0.0.1:8000"]))


def test_lines_name_both_values_and_no_secret() -> None:
    old = config_of(redis="redis://u:old-secret@h", max_attempts=3)
    lines = list(compare(old, config_of(redis="redis://u:new-secret@h", max_attempts=4)).lines())
    assert lines == ["max_attempts: 3 -> 4", "redis: (not shown) -> (not shown)"]


def test_a_long_value_is_cut() -> None:
    (line,) = compare(config_of(), config_of(policy_shadow=["x" * 500])).lines()
    assert len(line) < 250 and line.endswith("…")


def test_equal_configurations_have_no_difference() -> None:
    found = compare(config_of(), config_of())
    assert not [*found.live, *found.restart, *found.added, *found.dropped]
