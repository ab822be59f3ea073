"""Proofs that are made elsewhere come back as they are made here, and nothing is cut where they do not."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from gateway.core.rendering import VLLM, Rendering
from gateway.tokenization import proof_task
from gateway.tokenization.chat_template import Template, TooCostly
from gateway.tokenization.proof_process import compiled
from gateway.tokenization.proof_task import prove_by, prove_here, proved, task_of
from gateway.tokenization.render_settings import STUB_TOOLS, RenderSetting
from gateway.tokenization.template_reading import markup_of
from tests.support.corpus import TEMPLATE_NAMES, TEMPLATES
from tests.support.proof_settings import CUTS, LOOP, NOW, PLAIN, settings_of


def elsewhere(task: bytes) -> bytes:
    return proved(task, compiled)


def results(settings: list[RenderSetting]) -> list[Any]:
    return [(each.stubs, list(each.refusals), each.is_costly, each.num_units) for each in settings]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_proofs_elsewhere_are_those_made_here(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    here, there = (settings_of(source, {}, {"tools": STUB_TOOLS}) for _ in range(2))
    prove_here(CUTS, here)
    prove_by(elsewhere, VLLM, CUTS, there)
    assert results(there) == results(here)
    assert all(each.stubs is not None for each in there)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "mlx"])
def test_a_template_is_rendered_as_by_its_engine_elsewhere_too(engine: str) -> None:
    rendering = Rendering(engine, (0, 5, 23) if engine == "sglang" else ())
    template = compiled(rendering, LOOP)
    here, there = (RenderSetting(template, markup_of(template), PLAIN, NOW) for _ in range(2))
    asked = list[type]()

    def run(task: bytes) -> bytes:
        def made(rendering: Rendering, source: str) -> Template:
            asked.append(type(made := compiled(rendering, source)))
            return made

        return proved(task, made)

    prove_here(CUTS, [here])
    prove_by(run, rendering, CUTS, [there])
    assert asked == [type(template)] and here.stubs
    assert results([there]) == results([here])


def test_a_task_has_all_that_a_proof_depends_on() -> None:
    now = datetime(2024, 7, 26, 1, tzinfo=timezone(timedelta(hours=9)))
    one, other = settings_of(LOOP, {"mode": 1}, {}, now=now)
    task = json.loads(task_of(Rendering("sglang", (0, 5), "x"), CUTS, [one, other]))
    assert task["rendering"] == ["sglang", [0, 5], "x"] and task["cuts"] == list(CUTS)
    assert task["templates"] == [LOOP]
    assert task["settings"] == [
        [0, {**PLAIN, "mode": 1}, "2024-07-26T01:00:00+09:00"],
        [0, PLAIN, "2024-07-26T01:00:00+09:00"],
    ]


def test_texts_that_are_no_unicode_come_through() -> None:
    there, here = (settings_of(LOOP + "\ud800", {"bos_token": "\udfff"}) for _ in range(2))
    prove_by(elsewhere, VLLM, CUTS, there)
    prove_here(CUTS, here)
    assert results(there) == results(here) and here[0].stubs


@pytest.mark.parametrize("odd", [(1, 2), {1: 2}, float("nan")])
def test_variables_that_would_be_others_elsewhere_are_left_to_requests(odd: object) -> None:
    plain, strange = settings_of(LOOP, {}, {"odd": odd})
    prove_by(elsewhere, VLLM, CUTS, [strange, plain])
    assert plain.stubs and strange.stubs is None
    prove_by(lambda task: pytest.fail("there is nothing to prove"), VLLM, CUTS, [strange])


def test_a_task_that_cannot_be_run_leaves_its_settings_to_requests() -> None:
    (setting,) = settings_of(LOOP, {})

    def run(task: bytes) -> bytes:
        raise OSError("no memory")

    prove_by(run, VLLM, CUTS, [setting])
    assert setting.stubs is None
    while not setting.prove(CUTS):
        pass
    assert setting.stubs


def test_a_task_that_takes_too_much_leaves_no_cut_point() -> None:
    (setting,) = settings_of(LOOP, {})

    def run(task: bytes) -> bytes:
        raise TooCostly("it was killed", True, False)

    prove_by(run, VLLM, CUTS, [setting])
    assert setting.stubs == {} and setting.is_costly


def test_a_costly_probe_is_costly_elsewhere_too() -> None:
    (setting,) = settings_of(
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", {}
    )
    prove_by(elsewhere, VLLM, CUTS, [setting])
    assert setting.stubs == {} and setting.is_costly


def test_settings_beyond_the_units_of_a_task_are_left_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_task, "MAX_TASK_UNITS", 1)
    settings = settings_of(LOOP, {}, {"tools": STUB_TOOLS}, {"thinking": True})
    prove_by(elsewhere, VLLM, CUTS, settings)
    assert [each.stubs is None for each in settings] == [False, False, True]
