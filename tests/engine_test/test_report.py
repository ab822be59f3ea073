import json

from gateway.engine_test.report import EngineFinding, Report, Verdict

FINDINGS = [
    EngineFinding("load", Verdict.RIGHT, "is reported"),
    EngineFinding("unknown model", Verdict.ABSENT, "answered by another model", "no such name is sent there"),
]


def test_lines_name_the_verdict_the_observation_and_the_consequence() -> None:
    assert Report("http://w:1: vllm 1.0", FINDINGS).lines() == [
        "http://w:1: vllm 1.0",
        "  right   load           is reported",
        "  absent  unknown model  answered by another model",
        "                         → no such name is sent there",
        "  1 right, 1 absent",
    ]


def test_a_worker_with_something_wrong_is_not_usable() -> None:
    assert Report("w", FINDINGS).is_usable
    assert not Report("w", [*FINDINGS, EngineFinding("salts", Verdict.WRONG, "shared")]).is_usable


def test_json_has_each_finding() -> None:
    read = json.loads(Report("w", FINDINGS).as_json())
    assert read["usable"] is True
    assert [(each["question"], each["verdict"]) for each in read["findings"]] == [
        ("load", "right"),
        ("unknown model", "absent"),
    ]
