"""Verdicts of the conformance test, from every kind of observation."""

import pytest

from gateway.core.eligibility import Isolation, SaltProof
from gateway.engine_test import judgement
from gateway.engine_test.report import EngineFinding, Verdict

RIGHT, ABSENT, WRONG, UNKNOWN = Verdict.RIGHT, Verdict.ABSENT, Verdict.WRONG, Verdict.UNKNOWN


@pytest.mark.parametrize(
    "finding, verdict",
    [
        (judgement.cached_of_repeat(None, 65, 16), ABSENT),
        (judgement.cached_of_repeat(0, 65, 16), ABSENT),
        (judgement.cached_of_repeat(64, 65, 16), RIGHT),
        (judgement.cached_of_repeat(48, 65, 16), UNKNOWN),  # one unit shorter, as under EAGLE
        (judgement.cached_of_repeat(64, 65, None), RIGHT),
        (judgement.cached_of_repeat(63, 65, None), RIGHT),  # an engine without blocks
        (judgement.cached_of_repeat(66, 65, 16), WRONG),
        (judgement.predictions([(16, 16)] * 99 + [(16, 0)]), RIGHT),
        (judgement.predictions([(16, 16)] * 97 + [(16, 0)] * 2), WRONG),
        (judgement.predictions([(16, None)]), UNKNOWN),
        (judgement.replayed(5, 5, 5), RIGHT),
        (judgement.replayed(5, 4, 4), WRONG),
        (judgement.replayed(5, 5, 4), WRONG),
        (judgement.salts(SaltProof(Isolation.APART, "why")), RIGHT),
        (judgement.salts(SaltProof(Isolation.SHARED, "why")), WRONG),
        (judgement.salts(SaltProof(Isolation.UNKNOWN, "why")), UNKNOWN),
        (judgement.unknown_model(404, ""), RIGHT),
        (judgement.unknown_model(200, ""), ABSENT),
        (judgement.unknown_model(500, "500 oh"), WRONG),
        (judgement.unknown_model(0, "no answer"), WRONG),
        (judgement.adapter("a", 0, 49), RIGHT),
        (judgement.adapter("a", 48, 49), WRONG),
        (judgement.adapter("a", None, 49), UNKNOWN),
        (judgement.ranks([0, 48, 0]), RIGHT),
        (judgement.ranks([0, 48, 48]), WRONG),
        (judgement.ranks([0, 0, 0]), WRONG),
        (judgement.ranks([0, None, 0]), UNKNOWN),
        (judgement.several_prompts(200, "", is_alive=True), RIGHT),
        (judgement.several_prompts(400, "400 one only", is_alive=True), ABSENT),
        (judgement.several_prompts(500, "500 oh", is_alive=True), WRONG),
        (judgement.several_prompts(404, "", is_alive=False), WRONG),
        (judgement.several_answers(200, 0, 49), RIGHT),
        (judgement.several_answers(200, None, 49), RIGHT),
        (judgement.several_answers(200, 48, 49), UNKNOWN),
        (judgement.several_answers(400, None, 49), ABSENT),
        (judgement.leaving(True, True), RIGHT),
        (judgement.leaving(True, False), WRONG),
        (judgement.leaving(True, None), UNKNOWN),
        (judgement.leaving(False, None), UNKNOWN),
        (judgement.unknown_field(200), RIGHT),
        (judgement.unknown_field(400), ABSENT),
        (judgement.bad_requests([("no JSON", 400)]), RIGHT),
        (judgement.bad_requests([("no JSON", 400), ("no prompt", 500)]), WRONG),
        (judgement.bad_requests([("no JSON", 0)]), WRONG),
        (judgement.bad_requests([("no JSON", 400), ("no prompt", 200)]), UNKNOWN),
        (judgement.prompt_counts([("one", None, 9)]), ABSENT),
        (judgement.prompt_counts([("one", 9, 9), ("two", None, 9)]), RIGHT),
        (judgement.prompt_counts([("one", 9, 9), ("two", 8, 9)]), WRONG),
    ],
)
def test_each_observation_has_its_verdict(finding: EngineFinding, verdict: Verdict) -> None:
    assert finding.verdict is verdict
    assert finding.observed
    assert finding.consequence or verdict in (RIGHT, UNKNOWN)


def test_a_wrong_prediction_is_shown() -> None:
    found = judgement.predictions([(16, 16), (64, 0), (32, 16)])
    assert found.observed == "1 of 3 equal the engine's own counts; worst: 64 predicted, 0 cached"
