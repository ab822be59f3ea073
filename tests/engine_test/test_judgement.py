"""Verdicts of the conformance test, from every kind of observation."""

import pytest

from gateway.core.eligibility import Isolation, SaltProof
from gateway.engine_test import judgement
from gateway.engine_test.prompt_check import PromptCheck
from gateway.engine_test.report import EngineFinding, Verdict

OK, UNSUPPORTED, FAIL, INCONCLUSIVE = Verdict.OK, Verdict.UNSUPPORTED, Verdict.FAIL, Verdict.INCONCLUSIVE
IDS = (1, 2, 3)


def prompts(*checks: PromptCheck, needs_ours: bool = False, publishes: bool = True) -> EngineFinding:
    return judgement.prompt_counts("prompts", "chats", checks, needs_ours=needs_ours, publishes=publishes)


@pytest.mark.parametrize(
    "finding, verdict",
    [
        (judgement.cached_of_repeat(None, 65, 16), UNSUPPORTED),
        (judgement.cached_of_repeat(0, 65, 16), UNSUPPORTED),
        (judgement.cached_of_repeat(64, 65, 16), OK),
        (judgement.cached_of_repeat(48, 65, 16), INCONCLUSIVE),  # one unit shorter, as under EAGLE
        (judgement.cached_of_repeat(64, 65, None), OK),
        (judgement.cached_of_repeat(63, 65, None), OK),  # an engine without blocks
        (judgement.cached_of_repeat(66, 65, 16), FAIL),
        (judgement.predictions([(16, 16)] * 99 + [(16, 0)]), OK),
        (judgement.predictions([(16, 16)] * 97 + [(16, 0)] * 2), FAIL),
        (judgement.predictions([(16, None)]), INCONCLUSIVE),
        (judgement.replayed(5, 5, 5), OK),
        (judgement.replayed(5, 4, 4), FAIL),
        (judgement.replayed(5, 5, 4), FAIL),
        (judgement.salts(SaltProof(Isolation.APART, "why"), is_declared=True), OK),
        (judgement.salts(SaltProof(Isolation.APART, "why"), is_declared=False), OK),
        (judgement.salts(SaltProof(Isolation.SHARED, "why"), is_declared=True), FAIL),
        (judgement.salts(SaltProof(Isolation.SHARED, "why"), is_declared=False), UNSUPPORTED),
        (judgement.salts(SaltProof(Isolation.UNKNOWN, "why"), is_declared=True), INCONCLUSIVE),
        (judgement.unknown_model(404, ""), OK),
        (judgement.unknown_model(200, ""), UNSUPPORTED),
        (judgement.unknown_model(500, "500 oh"), FAIL),
        (judgement.unknown_model(0, "no answer"), FAIL),
        (judgement.adapter("a", 0, 49), OK),
        (judgement.adapter("a", 48, 49), FAIL),
        (judgement.adapter("a", None, 49), INCONCLUSIVE),
        (judgement.ranks([0, 48, 0]), OK),
        (judgement.ranks([0, 48, 48]), FAIL),
        (judgement.ranks([0, 0, 0]), FAIL),
        (judgement.ranks([0, None, 0]), INCONCLUSIVE),
        (judgement.several_prompts(200, "", is_alive=True), OK),
        (judgement.several_prompts(400, "400 one only", is_alive=True), UNSUPPORTED),
        (judgement.several_prompts(500, "500 oh", is_alive=True), FAIL),
        (judgement.several_prompts(404, "", is_alive=False), FAIL),
        (judgement.several_answers(200, 0, 49), OK),
        (judgement.several_answers(200, None, 49), OK),
        (judgement.several_answers(200, 48, 49), INCONCLUSIVE),
        (judgement.several_answers(400, None, 49), UNSUPPORTED),
        (judgement.several_answers(200, 0, 49, 1), UNSUPPORTED),
        (judgement.leaving(True, True), OK),
        (judgement.leaving(True, False), FAIL),
        (judgement.leaving(True, None), INCONCLUSIVE),
        (judgement.leaving(False, None), INCONCLUSIVE),
        (judgement.unknown_field(200), OK),
        (judgement.unknown_field(400), UNSUPPORTED),
        (judgement.bad_requests([("no JSON", 400)]), OK),
        (judgement.bad_requests([("no JSON", 400), ("no prompt", 500)]), FAIL),
        (judgement.bad_requests([("no JSON", 0)]), FAIL),
        (judgement.bad_requests([("no JSON", 400), ("no prompt", 200)]), INCONCLUSIVE),
        (prompts(), UNSUPPORTED),
        (prompts(PromptCheck("one", (), (), 9)), UNSUPPORTED),  # nothing to compare with
        (prompts(PromptCheck("one", (), IDS, None)), UNSUPPORTED),
        (prompts(PromptCheck("one", (), IDS, 3), PromptCheck("two", (), (), 9)), OK),
        (prompts(PromptCheck("one", (), IDS, 3), PromptCheck("two", (), IDS, 4)), FAIL),
        (prompts(PromptCheck("one", IDS, IDS, 3)), OK),
        (prompts(PromptCheck("one", IDS, (), 3)), OK),  # its /tokenize takes no chats: its answers prove it
        (prompts(PromptCheck("one", IDS, (), 4)), FAIL),
        (prompts(PromptCheck("one", IDS, (1, 2, 4), 3)), FAIL),  # as many, and others
        (prompts(PromptCheck("one", IDS, (), 4), publishes=False), UNSUPPORTED),  # only counts are off
        (prompts(PromptCheck("one", (), IDS, 3), needs_ours=True), UNSUPPORTED),  # kvgate asks it for none
        (prompts(PromptCheck("one", IDS, IDS, 3), needs_ours=True), OK),
    ],
)
def test_each_observation_has_its_verdict(finding: EngineFinding, verdict: Verdict) -> None:
    assert finding.verdict is verdict
    assert finding.observed
    assert finding.consequence or verdict in (OK, INCONCLUSIVE)


def test_a_wrong_prediction_is_shown() -> None:
    found = judgement.predictions([(16, 16), (64, 0), (32, 16)])
    assert found.observed == "1 of 3 equal the engine's own counts; worst: 64 predicted, 0 cached"
