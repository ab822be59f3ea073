"""What changes, what of it can be taken, and what is said of it."""

import pytest

from gateway.config import config_of
from gateway.config.diff import compare
from gateway.core.errors import ConfigError


def test_what_is_live_is_told_from_what_needs_a_restart() -> None:
    old = config_of(port=1, idle_timeout_s=5.0, policy="auto")
    found = compare(old, config_of(port=2, idle_timeout_s=6.0, policy="auto"))
    assert (found.live, found.restart) == (["idle_timeout_s"], ["port"])
    taken = found.applied_to(old)
    assert (taken.server.port, taken.proxy.idle_timeout_s) == (1, 6.0)


def test_what_is_in_use_keeps_what_was_made_of_it_at_the_start() -> None:
    found = compare(config_of(redis="embedded"), config_of(redis="embedded", max_attempts=9))
    in_use = found.applied_to(config_of(redis="unix:///tmp/socket"))
    assert (in_use.redis.url, in_use.proxy.max_attempts) == ("unix:///tmp/socket", 9)


def test_workers_are_compared_as_they_are_kept() -> None:
    old = config_of(worker=["http://a:1/", "http://b:1"], prefill=["http://p:1"])
    found = compare(old, config_of(worker=["http://a:1", "http://c:1"], decode=["http://p:1"]))
    assert found.added == ["http://c:1", "decode=http://p:1"]
    assert found.dropped == ["http://b:1", "prefill=http://p:1"]


def test_a_worker_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="worker: .*not an http"):
        compare(config_of(), config_of(worker=["10.0.0.1:8000"]))


def test_lines_name_both_values_and_no_secret() -> None:
    old = config_of(redis="redis://u:old-secret@h", max_attempts=3)
    lines = list(compare(old, config_of(redis="redis://u:new-secret@h", max_attempts=4)).lines())
    assert lines == ["max_attempts: 3 -> 4", "redis: (not shown) -> (not shown)"]


def test_a_long_value_is_cut() -> None:
    (line,) = compare(config_of(), config_of(policy_shadow=["x" * 500])).lines()
    assert len(line) < 250 and line.endswith("…")


def test_nothing_changed() -> None:
    found = compare(config_of(), config_of())
    assert not [*found.live, *found.restart, *found.added, *found.dropped]
