import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.config import load
from gateway.core.decision import Decision, Split
from gateway.core.errors import ConfigError
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
    counted.drop_worker(WorkerId("p:1"))
    assert counted.policy.ban(WorkerId("p:1"), WorkerId("d:1"))
