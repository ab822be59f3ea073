import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from gateway.config import load
from gateway.core.decision import Decision, Split
from gateway.core.errors import ConfigError
from gateway.core.media import BEFORE_MEDIA
from gateway.core.sse import Usage
from gateway.core.worker import WorkerId
from gateway.splits import Splits, SplitsCollector, splits_of
from tests import fakes


def decision(*, is_split: bool) -> Decision:
    made = fakes.decision("d1", "d:1", "p:1")
    prefill = made.candidates[1]
    reason = "prefill elsewhere is sooner" if is_split else "sooner without a transfer"
    split = Split(reason, prefill.worker if is_split else None, candidates=(prefill,))
    return Decision(**{name: getattr(made, name) for name in made.__struct_fields__} | {"split": split})


def splits() -> Splits:
    return splits_of(load({"disaggregation": ["m=never"]}, environ={}))


def test_options_make_the_policy() -> None:
    assert splits().policy.modes == {"": "auto", "m": "never"}
    with pytest.raises(ConfigError, match="disaggregation"):
        splits_of(load({"disaggregation": ["sometimes"]}, environ={}))


def test_what_is_counted_is_told() -> None:
    counted, split = splits(), decision(is_split=True)
    counted.decided(split)
    counted.decided(decision(is_split=False))
    counted.decided(fakes.decision())  # of a fleet without prefill workers
    counted.prefilled(split, 0.3)
    counted.began(split, 0.5)
    counted.transferred(split, 0.2)
    counted.failed("died")
    registry = CollectorRegistry()
    registry.register(SplitsCollector(counted))
    page = generate_latest(registry).decode()
    for line in (
        'kvgate_plans_total{plan="prefill_decode",reason="prefill elsewhere is sooner"} 1.0',
        'kvgate_plans_total{plan="direct",reason="sooner without a transfer"} 1.0',
        'kvgate_split_failures_total{cause="died"} 1.0',
        'kvgate_plan_ttft_seconds_sum{plan="prefill_decode"} 0.5',
        "kvgate_prefill_seconds_sum 0.3",
        "kvgate_transfer_seconds_sum 0.2",
        f"kvgate_transferred_tokens_total {float(split.uncached_tokens)}",
        "kvgate_leg_mismatches_total 0.0",
    ):
        assert line in page, line
    assert "failures={'died': 1}" in repr(counted)


def test_different_prompts_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    counted, split = splits(), decision(is_split=True)
    for prefilled, decoded in ((None, 4), (4, 4)):
        counted.compare(split, prefilled, decoded)
    counted.compare(decision(is_split=False), 3, 4)
    assert counted.num_mismatches == 0
    for _ in range(2):
        counted.compare(split, 3, 4)
    assert counted.num_mismatches == 2
    (record,) = caplog.records
    assert "p:1 and d:1 make different prompts of one request (3 and 4 tokens)" in record.message
    assert "3 and 4 tokens" in counted.policy.banned_with(WorkerId("p:1"))[WorkerId("d:1")]
    counted.drop_worker(WorkerId("p:1"))
    assert counted.policy.banned_with(WorkerId("d:1")) == {}


def test_our_count_stands_for_the_decode_workers(caplog: pytest.LogCaptureFixture) -> None:
    """Until its own tells otherwise; where the prompt is not known, or only its begin, it says nothing."""
    counted, split = splits(), decision(is_split=True)
    ours = split.num_tokens
    assert counted.agree(split, None) and counted.agree(split, ours)
    assert counted.agree(structs.replace(split, num_tokens=0), 7)
    assert counted.agree(structs.replace(split, prompt_from=BEFORE_MEDIA), 7)
    assert counted.agree(decision(is_split=False), 7)
    assert not counted.agree(split, 7)
    assert (counted.failures, counted.num_mismatches) == ({"mismatch": 1}, 1)
    assert f"p:1 and d:1 make different prompts of one request (7 and {ours} tokens)" in caplog.text
    counted.answered(split, Usage(7))
    assert counted.agree(split, 7)
    counted.answered(split, Usage(0))
    counted.answered(split, Usage(ours))
    assert not counted.agree(split, 7)


def test_who_is_acquitted_is_a_pair_again(caplog: pytest.LogCaptureFixture) -> None:
    counted, split = splits(), decision(is_split=True)
    p = WorkerId("p:1")
    counted.acquit(p, split, 7)
    assert not caplog.text
    counted.agree(split, 7)
    counted.acquit(p, split, 7)
    assert "p:1 and d:1 make the same prompts after all (7 tokens)" in caplog.text
    assert counted.policy.banned_with(p) == {}


def test_another_process_may_count_as_we_do() -> None:
    counted, split = splits(), decision(is_split=True)
    counted.answered(split, Usage(7))
    counted.drop_worker(WorkerId("d:1"))
    assert not counted.agree(split, 7)
