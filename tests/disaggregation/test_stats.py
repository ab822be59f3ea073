import pytest

from gateway.config import load
from gateway.core.errors import ConfigError
from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.usage import Usage
from gateway.core.value import replace
from gateway.core.worker import WorkerId
from gateway.disaggregation.stats import PinnedPrompt, disaggregation_stats_of
from tests.support.worlds.disaggregated import disaggregation_stats, split_decision


def test_modes_make_the_policy() -> None:
    assert disaggregation_stats().policy.modes == {"": "auto", "m": "never"}
    with pytest.raises(ConfigError, match="disaggregation"):
        disaggregation_stats_of(load({"disaggregation": ["sometimes"]}, environ={}))


def test_transferred_blocks_are_pinned_until_released() -> None:
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    counted.pin(split, 33)
    assert list(counted.pinned.values()) == [PinnedPrompt(WorkerId("p:1"), 33, 3)]
    counted.pin(split, None)
    assert counted.pinned["d1"].num_tokens == split.num_tokens
    for _ in range(2):
        counted.unpin(split)
    assert counted.pinned == {}
    counted.pin(split_decision(is_split=False), 33)
    assert counted.pinned == {}


def test_different_prompts_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    for prefilled, decoded in ((None, 4), (4, 4)):
        counted.compare(split, prefilled, decoded)
    counted.compare(split_decision(is_split=False), 3, 4)
    assert counted.num_mismatches == 0
    for _ in range(2):
        counted.compare(split, 3, 4)
    assert counted.num_mismatches == 2
    (record,) = caplog.records
    assert "p:1 and d:1: prompt tokens differ (3 and 4)" in record.message
    assert "3 and 4 tokens" in counted.policy.banned_with(WorkerId("p:1"))[WorkerId("d:1")]
    counted.drop_worker(WorkerId("p:1"))
    assert counted.policy.banned_with(WorkerId("d:1")) == {}


def test_our_count_is_used_until_the_decode_worker_reports_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """An unknown prompt, or one of which only the beginning is known, is not compared."""
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    ours = split.num_tokens
    assert counted.agree(split, None) and counted.agree(split, ours)
    assert counted.agree(replace(split, num_tokens=0), 7)
    assert counted.agree(replace(split, prompt_from=BEFORE_MEDIA), 7)
    assert counted.agree(split_decision(is_split=False), 7)
    assert not counted.agree(split, 7)
    assert (counted.failures, counted.num_mismatches) == ({"mismatch": 1}, 1)
    assert f"p:1 and d:1: prompt tokens differ (7 and {ours})" in caplog.text
    counted.answered(split, Usage(7))
    assert counted.agree(split, 7)
    counted.answered(split, Usage(0))
    counted.answered(split, Usage(ours))
    assert not counted.agree(split, 7)


def test_an_acquitted_worker_is_a_pair_again(caplog: pytest.LogCaptureFixture) -> None:
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    p = WorkerId("p:1")
    counted.acquit(p, split, 7)
    assert not caplog.text
    counted.agree(split, 7)
    counted.acquit(p, split, 7)
    assert "p:1 and d:1: prompt tokens agree (7)" in caplog.text
    assert counted.policy.banned_with(p) == {}


def test_a_restarted_decode_worker_is_compared_with_our_count_again() -> None:
    counted, split = disaggregation_stats(), split_decision(is_split=True)
    counted.answered(split, Usage(7))
    counted.drop_worker(WorkerId("d:1"))
    assert not counted.agree(split, 7)
