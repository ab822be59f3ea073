import pytest

from gateway.epp.control_headers import CONTROL, ControlHeaders, as_declared, control_of, with_model
from gateway.http.messages import Header
from gateway.tenancy.admission.request_identity import HeaderNames

NAMES = HeaderNames(b"tenant", b"priority", b"slo")


@pytest.mark.parametrize("prefix", [b"x-llm-d-", b"x-gateway-"])
def test_old_and_new_names_mean_the_same(prefix: bytes) -> None:
    given = [
        (prefix + b"inference-objective", b"chat"),
        (prefix + b"inference-fairness-id", b"acme"),
        (b"x-llm-d-slo-ttft-ms" if prefix == b"x-llm-d-" else b"x-slo-ttft-ms", b"200"),
        (prefix + b"model-name-rewrite", b"tuned"),
    ]
    assert {name for name, _ in given} < CONTROL
    assert control_of(given) == ControlHeaders("chat", b"acme", b"200", "tuned")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ControlHeaders()),
        ([(b"x-llm-d-slo-tpot-ms", b"5"), (b"accept", b"*/*")], ControlHeaders()),
        ([(b"x-llm-d-inference-objective", b"")], ControlHeaders()),
        (
            [(b"x-gateway-inference-objective", b"old"), (b"x-llm-d-inference-objective", b"new")],
            ControlHeaders("new"),
        ),
        ([(b"x-llm-d-model-name-rewrite", b"m" * 1000)], ControlHeaders(model="m" * 256)),
    ],
)
def test_the_new_name_goes_before_the_old_one(given: list[Header], expected: ControlHeaders) -> None:
    assert control_of(given) == expected


def test_objectives_count_up_and_priorities_down() -> None:
    control = ControlHeaders("chat", b"acme", b"200", "tuned")
    declared = as_declared(control, NAMES, {"chat": 10, "batch": -5})
    assert declared == [(b"tenant", b"acme"), (b"priority", b"-10"), (b"slo", b"200")]
    assert as_declared(ControlHeaders("batch"), NAMES, {"batch": -5}) == [(b"priority", b"5")]
    assert as_declared(ControlHeaders("unknown"), NAMES, {}) == [(b"priority", b"0")]
    assert as_declared(ControlHeaders(), NAMES, {}) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m","prompt":"a"}', b'{"model":"tuned","prompt":"a"}'),
        (b'{"prompt":"a"}', b'{"prompt":"a","model":"tuned"}'),
        ('{"prompt":"a"}'.encode("utf-16"), b'{"prompt":"a","model":"tuned"}'),
        (b'\xef\xbb\xbf{"model":"m"}', b'{"model":"tuned"}'),
        (b"\xff\xfe{", b"\xff\xfe{"),
        (b"no json", b"no json"),
        (b"[1]", b"[1]"),
        (b"--form", b"--form"),
    ],
)
def test_a_rewrite_names_the_model_in_the_body(body: bytes, expected: bytes) -> None:
    assert with_model(body, "tuned") == expected
