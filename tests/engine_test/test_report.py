from gateway.engine_test.report import EngineFinding, Report, Verdict

FINDINGS = [
    EngineFinding("load", Verdict.OK, "is reported"),
    EngineFinding(
        "unknown model", Verdict.UNSUPPORTED, "answered by another model", "no such name is sent there"
    ),
]


def test_lines_name_the_verdict_the_observation_and_the_consequence() -> None:
    assert Report("http://w:1: vllm 1.0", FINDINGS).lines() == [
        "http://w:1: vllm 1.0",
        "  ok            load           is reported",
        "  unsupported   unknown model  answered by another model",
        "                               → no such name is sent there",
        "  1 ok, 1 unsupported",
    ]


def test_a_worker_with_something_wrong_is_not_usable() -> None:
    assert Report("w", FINDINGS).is_usable
    assert not Report("w", [*FINDINGS, EngineFinding("salts", Verdict.FAIL, "shared")]).is_usable


def test_json_has_each_finding() -> None:
    read = Report("w", FINDINGS).fields()
    assert read["usable"] is True
    assert [(each["question"], each["result"]) for each in read["findings"]] == [
        ("load", "ok"),
        ("unknown model", "unsupported"),
    ]
