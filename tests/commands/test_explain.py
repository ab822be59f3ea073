"""Output of `kvgate explain`; tests/blackbox/test_policies.py has a running gateway's answers."""

from typing import Any

import pytest

from gateway import cli
from gateway.commands.explain import lines

EXPLAINED: dict[str, Any] = {
    "model": "m",
    "policy": "latency_slo",
    "worker": "b:1",
    "reason": "in time",
    "prompt_tokens": 100,
    "tokenized_by": "fastokens",
    "not_tokenized": None,
    "predicted_ttft_s": 0.25,
    "disaggregation": None,
    "admission": None,
    "candidates": [
        {
            "worker": name,
            "cost": cost,
            "terms": {"booked_s": cost / 2, "prefill_s": cost / 2},
            "overlap_tokens": 64,
            "uncached_tokens": 36,
            "booked_tokens": 1000,
            "in_flight": 2,
            "waiting": 0,
            "kv_usage": 0.5,
            "is_exact": name == "b:1",
        }
        for name, cost in (("a:1", 0.5), ("b:1", 0.25))
    ],
}


def test_the_chosen_worker_is_first_and_marked() -> None:
    shown = list(lines(EXPLAINED))
    assert shown[:6] == [
        "m, 100 prompt tokens (fastokens): b:1, by latency_slo",
        "in time; first token in 0.250 s",
        "",
        "   worker  cost  booked_s  prefill_s  overlap  uncached  booked  in flight    kv  exact",
        ">  b:1     0.25    0.1250     0.1250       64        36    1000          2  0.50    yes",
        "   a:1      0.5    0.2500     0.2500       64        36    1000          2  0.50     no",
    ]
    legend = {line.split()[0] for line in shown[7:]}
    assert legend == {"cost", "booked_s", "prefill_s", "overlap", "uncached", "booked", "kv", "exact"}


def test_load_that_an_engine_does_not_report_is_shown_as_unknown() -> None:
    silent = [{**each, "waiting": None, "kv_usage": None} for each in EXPLAINED["candidates"]]
    shown = list(lines({**EXPLAINED, "candidates": silent}))
    assert shown[4].split()[-4:] == ["2", "?", "?", "yes"]


def test_a_decision_without_terms_tokens_or_prediction_is_printed() -> None:
    plain = [{**each, "cost": None, "terms": {}} for each in EXPLAINED["candidates"]]
    split = {"prefill_worker": "p:1", "reason": "sooner"}
    reported = {
        **EXPLAINED,
        "candidates": plain,
        "predicted_ttft_s": None,
        "not_tokenized": "no model",
        "disaggregation": split,
        "admission": {"tenant": "acme", "priority": 3, "result": "rejected", "reason": "too late"},
    }
    first, why, where, identity, _, _, chosen, *_ = lines(reported)
    assert identity == "for tenant acme, priority 3: rejected: too late"
    assert first == "m, prompt not tokenized: no model: b:1, by latency_slo"
    assert (why, where) == ("in time", "prompt computed by p:1: sooner")
    assert chosen.split() == [">", "b:1", "64", "36", "1000", "2", "0.50", "yes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt-file", "no.json"], "--prompt-file no.json: cannot be read: No such file or directory"),
        (["--prompt-file", __file__, "--header", "x"], "--header x: give NAME: VALUE"),
        (
            ["--prompt-file", __file__, "--gateway", "http://127.0.0.1:9"],
            "--gateway http://127.0.0.1:9: not a gateway's admin address: ",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_an_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"kvgate: {words}")
