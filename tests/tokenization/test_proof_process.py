"""The process of proofs answers a task, within limits of its own."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from gateway.core.rendering import VLLM, Rendering
from gateway.tokenization import proof_process
from gateway.tokenization.chat_template import PromptError, Template
from gateway.tokenization.mlx import MlxTemplate
from gateway.tokenization.proof_process import MAX_CPU_S, compiled, main
from gateway.tokenization.proof_task import proved, task_of
from gateway.tokenization.sglang import SglangTemplate
from tests.support.proof_settings import CUTS, LOOP, settings_of


def test_templates_are_those_of_the_engine() -> None:
    sglang = Rendering("sglang", (0, 5, 23))
    template = compiled(sglang, LOOP)
    assert isinstance(template, SglangTemplate) and template.rendering == sglang
    assert type(compiled(Rendering("mlx"), LOOP)) is MlxTemplate
    assert type(compiled(VLLM, LOOP)) is Template
    with pytest.raises(PromptError, match="does not compile"):
        compiled(VLLM, "{% if %}")


def test_the_process_answers_on_its_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    task, limits, answer = task_of(VLLM, CUTS, settings_of(LOOP, {})), list[int](), io.BytesIO()
    monkeypatch.setattr(proof_process, "limit", limits.append)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(task)))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=answer))
    assert main() == 0 and limits == [MAX_CPU_S]
    assert answer.getvalue() == proved(task, compiled) and json.loads(answer.getvalue())
