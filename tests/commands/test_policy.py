from pathlib import Path

import pytest

from gateway import cli

GOOD = """
from gateway.policies.base import pick_lowest

class Mine:
    name = "mine"
    def choose(self, query, candidates, rng):
        return pick_lowest([each.booked_tokens for each in candidates], rng)

class Near:
    def keep(self, query, candidates):
        return candidates
"""
BAD = "def choose(query, candidates, rng):\n    return 0\n"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["policy", *arguments])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "my_policy.py").write_text(text)
    return str(tmp_path / "my_policy.py")


def test_every_policy_of_a_file_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ran(capsys, "test", written(tmp_path, GOOD), "--policy-budget-ms", "60000")
    assert code == 0
    assert text.startswith("policy mine\n  ok    one candidate is chosen\n")
    checks = ["some of the candidates are kept", "reading query.prefix is declared"]
    assert text.endswith(f"filter Near\n  ok    {checks[0]}\n  ok    {checks[1]}\n11 of 11 checks passed\n")


def test_a_failed_policy_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = ran(capsys, "test", written(tmp_path, BAD), "--policy-budget-ms", "60000")
    assert code == 1
    assert (
        "  FAIL  equal workers share the requests: 400 requests went to 4 equal workers as [400, 0, 0, 0]"
        in text
    )
    assert text.endswith("8 of 9 checks passed\n")


def test_a_repeated_reason_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ran(capsys, "test", written(tmp_path, BAD.replace("0", "candidates[0]")))
    assert code == 1
    words = "it returned a candidate; return its index or a Choice"
    assert text.startswith(
        f"policy my_policy\n  FAIL  one candidate is chosen: {words}\n"
        "  FAIL  one of many candidates is chosen: the same\n"
    )
    assert (text.count(words), text.count(": the same")) == (1, 8)


def test_a_policy_that_takes_too_long_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ran(
        capsys, "test", written(tmp_path, GOOD), "--policy", "mine", "--policy-budget-ms", "0.000001"
    )
    assert (code, text.count("FAIL")) == (1, 1)
    assert "  FAIL  1000 candidates are within the budget: 1000 candidates took " in text


def test_an_unreadable_file_has_no_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ran(capsys, "test", written(tmp_path, "def choose(:"))
    assert code == 2 and text.endswith("my_policy.py:1: invalid syntax\n")


def test_shipped_and_composed_policies_can_be_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kvgate.toml"
    config.write_text(
        '[policy]\nname = "mine"\n[policies.mine]\nscorers = { prefix_overlap = 3, least_load = 1 }\n'
    )
    budget = ("--policy-budget-ms", "60000")
    assert ran(capsys, "test", "--config", str(config), *budget)[0] == 0
    code, text = ran(capsys, "test", "--policy", "power_of_two", *budget)
    assert code == 0 and text.startswith("policy power_of_two\n")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("power_of_two", ["policy"]),
        ("lora_affinity", ["policy", "scorer"]),
        ("topology", ["policy", "filter"]),
        ("weighted", ["picker"]),
        ("Near", ["filter"]),
    ],
)
def test_everything_with_a_name_is_tested(
    name: str, kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("--policy-file", written(tmp_path, GOOD), "--policy-budget-ms", "60000")
    code, text = ran(capsys, "test", name, *own)
    heads = [line for line in text.splitlines()[:-1] if not line.startswith("  ")]
    assert (code, heads) == (0, [f"{kind} {name}" for kind in kinds])


@pytest.mark.parametrize(
    ("name", "words"),
    [("power_of_too", "; did you mean power_of_two?"), ("zz", "; see `kvgate policy list`")],
)
def test_an_unknown_name_is_answered_with_a_similar_one(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = ran(capsys, "test", name)
    assert (code, text) == (2, f"kvgate: there is no policy, filter, scorer or picker '{name}'{words}\n")


def test_a_package_that_cannot_be_loaded_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lost_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lost-package\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[kvgate.policies]\nlost = no_such_module:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, text = ran(capsys, "list")
    words = "left out: policy 'lost' of package lost-package cannot be loaded: "
    assert code == 0 and text.splitlines()[-1].startswith(words)


def test_policies_of_installed_packages_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_package.py").write_text(GOOD)
    installed = tmp_path / "their_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[kvgate.policies]\ntheirs = their_package:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, text = ran(capsys, "test", "--policy", "theirs", "--policy-budget-ms", "60000")
    assert (code, text.splitlines()[0], text.splitlines()[-1]) == (0, "policy theirs", "9 of 9 checks passed")
    shown = ran(capsys, "list")[1].splitlines()
    assert [line.partition(":")[0] for line in shown if "theirs" in line] == ["policy"]


def test_known_policies_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ran(capsys, "list", "--policy-file", written(tmp_path, GOOD))
    policies, filters, scorers, pickers = text.splitlines()
    assert code == 0
    assert policies.startswith("policy: expected_ttft, ") and policies.endswith("tenant_fairness, mine")
    assert filters == "filter: topology, tenant_fairness, Near"
    assert scorers.startswith("scorer: ") and pickers == "picker: max, weighted, best_of_two"
