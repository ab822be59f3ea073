"""The benchmark of templates: what it takes in, and that it counts each kind of difference."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.app import bundled_tokenizer
from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest import bench_templates
from loadtest.bench_templates import Tally, chats, compare_template, figures_of, made_model, recorded, sources
from tests.support.corpus import TEMPLATES

CHATML = (TEMPLATES / "chatml.jinja").read_text("utf-8")
BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": role, "content": role} for role in ("user", "assistant", "user")]},
    {"messages": [{"role": "user", "content": 5}]},
]


def values(templates: Tally, tokens: Tally) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures_of(templates, tokens)}


def theirs_of(directory: Path) -> list[Any]:
    prompts = PromptEncoder.load(directory)
    return [bench_templates.whole_of(prompts, body, bench_templates.datetime.now()) for body in BODIES]


def test_equal_prompts_and_bodies_that_both_refuse_are_no_difference(tmp_path: Path) -> None:
    directory = made_model(tmp_path / "m", CHATML)
    tally, theirs = Tally(), theirs_of(directory)
    assert theirs[0] and theirs[2] is None
    compare_template(tally, "chatml", directory, theirs, BODIES)
    assert (tally.num_equal, tally.num_different, tally.num_grown_different, tally.num_refused) == (
        2,
        0,
        0,
        1,
    )
    assert tally.shown == []


def test_each_kind_of_difference_is_counted_and_shown(tmp_path: Path) -> None:
    directory = made_model(tmp_path / "m", CHATML)
    tally, (first, _, _) = Tally(), theirs_of(directory)
    compare_template(tally, "chatml", directory, [[*first, 1], None, first], BODIES)
    found = values(tally, Tally())
    assert (found["templates.differ"], found["templates.differ.turn_by_turn"]) == (1, 1)
    assert (found["templates.refused_there"], found["templates.refused_here"]) == (1, 1)
    assert len(tally.shown) == 2 and "chatml: differs" in tally.shown[0] and "refused here" in tally.shown[1]
    goals = {figure.name: figure.goal for figure in figures_of(tally, Tally())}
    assert {name for name, goal in goals.items() if goal == 0} == {
        "templates.differ",
        "templates.differ.turn_by_turn",
        "vocabularies.differ",
    }


def test_prompt_that_differs_turn_by_turn_alone_is_counted() -> None:
    tally = Tally()
    tally.add("t", "body", [1], [1], [2])
    assert (tally.num_equal, tally.num_different, tally.num_grown_different) == (1, 0, 1) and tally.shown


def test_template_that_does_not_load_is_refused_here_alone(tmp_path: Path) -> None:
    tally = Tally()
    compare_template(
        tally, "t", made_model(tmp_path / "m", "{{ raise_exception('no') }}"), [[1], None], BODIES[:2]
    )
    assert (tally.num_refused_here, tally.num_refused) == (1, 1)


def test_folder_of_templates_and_configurations_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jinja").write_text("one")
    for name, template in (
        ("b", "two"),
        ("c", [{"name": "default", "template": "three"}, {"name": "tool_use", "template": "four"}]),
        ("d", None),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    monkeypatch.setenv("TEMPLATES", str(tmp_path))
    assert sources() == {"a": "one", "b:default": "two", "c:default": "three", "c:tool_use": "four"}
    monkeypatch.setenv("TEMPLATES", str(tmp_path / "d"))
    with pytest.raises(SystemExit, match="no \\*.jinja"):
        sources()


def test_markers_of_a_template_are_special_tokens_of_its_model(tmp_path: Path) -> None:
    source = "<|turn|>{{ messages[0].content }}</s>[INST]<|im_end|>"
    prompts = PromptEncoder.load(made_model(tmp_path / "m", source))
    tokens = prompts.encode("<|turn|></s>[INST]", False).tolist()
    assert sorted(tokens) == [8192, 8193, 8194]


def test_vocabularies_of_a_folder_are_beside_those_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS", str(bundled_tokenizer().parent))
    found = bench_templates.vocabularies_at_hand(tmp_path)
    assert found["tokenizer"] == str(bundled_tokenizer()) and len(found) == len(bench_templates.KINDS) + 1


def test_without_an_engine_its_recorded_prompts_are_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_templates, "STRIDE", 40)
    models = {"chatml": str(made_model(tmp_path / "m", CHATML))}
    kind = "Qwen 3 with a space"
    name, templates, tokens = recorded(models, {kind: bench_templates.vocabularies_at_hand(tmp_path)[kind]})
    assert name.startswith("recorded, vLLM") and templates.num_equal > 3 and tokens.num_equal > 10
    found = values(templates, tokens)
    assert (found["templates.differ"], found["vocabularies.differ"], found["vocabularies"]) == (0, 0, 1)


def test_python_that_is_named_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PYTHON", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="does not exist"):
        bench_templates.python_of_engine()


@pytest.mark.process
def test_reference_is_a_program_that_prints_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside.py"
    inside.write_text(
        "import json, sys\ngiven = json.load(sys.stdin)\nprint('noise')\n"
        "print(json.dumps({'reference': 'r 1'}))\n"
        "print(json.dumps({'template': 't', 'ids': [[1]] * len(given['chats'])}))\n"
        "print(json.dumps({'model': 'v', 'ids': [[2]] * len(given['texts'])}))\n"
    )
    monkeypatch.setattr(bench_templates, "INSIDE", inside)
    directory = str(made_model(tmp_path / "m", CHATML))
    given = {"templates": {"t": directory}, "chats": chats(), "models": {"v": directory}, "texts": ["a"]}
    name, templates, tokens = bench_templates.measured(Path(sys.executable), given, tmp_path / "answers")
    assert name == "r 1" and templates.num_sources == tokens.num_sources == 1
    assert templates.num_different > 0 and tokens.num_different == 1
    inside.write_text("raise SystemExit('no engine here')")
    with pytest.raises(SystemExit, match="no engine here"):
        bench_templates.measured(Path(sys.executable), given, tmp_path / "answers")
