import json
from datetime import datetime
from pathlib import Path

import pytest

from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest.bench_proxy import LATENCY, SCENARIOS, TWO, Materials, Results, figures, main, print_ratios
from loadtest.publisher import read_prompts
from loadtest.report import best_of
from loadtest.workloads.bodies import parse


def test_figures_are_the_best_rounds() -> None:
    results = Results(memory=[best_of("proxy.rss_mb", "MB", 120, [101.0, 100.0])])
    results.kvgate["small"] = [70.0, 55.0]
    results.nginx["small"] = [15.0, 16.0]
    found = {figure.name: (figure.value, figure.goal) for figure in figures(results)}
    assert found == {
        "proxy.small.cpu_us": (55, 60),
        "proxy.nginx.small.cpu_us": (15, None),
        "proxy.rss_mb": (100, 120),
    }


def test_two_processes_are_compared_with_the_better_round_of_one() -> None:
    results = Results(imbalance=[0.1, 0.05])
    results.of_processes[1], results.of_processes[2] = [60.0, 50.0], [54.0, 60.0]
    found = {figure.name: (figure.value, figure.rounds) for figure in figures(results)}
    assert found["proxy.two_process_cpu_ratio"] == (1.08, [1.08, 1.2])
    assert found["proxy.two_process_imbalance"] == (0.05, [0.1, 0.05])


def test_ratios_are_shown_where_both_sides_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results()
    results.kvgate["small"], results.kvgate["64k_warm"] = [60.0, 45.0], [150.0]
    results.nginx["small"] = [15.0]
    print_ratios(results)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert rows == [
        ["CPU-us", "small", "16k", "64k", "chunk"],
        ["nginx", "15.0", "-", "-", "-"],
        ["kvgate", "45.0", "-", "150.0", "-"],
        ["ratio", "3.0", "-", "-", "-"],
    ]


def test_an_unknown_scenario_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "small,smal"])
    assert "no scenario is called smal" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("template", ["bundled", "qwen3"])
def test_workers_hold_the_beginnings_of_warm_requests(tmp_path: Path, template: str) -> None:
    materials = Materials(tmp_path)
    known = read_prompts(materials.prompts())
    request = json.loads(next(parse(materials.bodies("64k_warm").read_bytes())))
    prompt = PromptEncoder.load(materials.tokenizers[template]).chat(request, datetime(2026, 1, 1))
    held = max(len(tokens) for tokens in known if tokens[:-1] == prompt[: len(tokens) - 1])
    assert held > 0.95 * len(prompt)


def test_scenario_names_are_unique_and_templates_exist(tmp_path: Path) -> None:
    assert len({scenario.name for scenario in (*SCENARIOS, LATENCY, TWO)}) == len(SCENARIOS) + 2
    materials = Materials(tmp_path)
    for scenario in SCENARIOS:
        assert (materials.tokenizers[scenario.template] / "tokenizer.json").is_file()
