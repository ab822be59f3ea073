"""kvgate's prompts equal SGLang's, for every body of the corpus that SGLang answers, in two of its versions.

The engine's own code makes the prompts (`inside_prompts.py`, without a server). They are kept as digests, so
that tests/tokenization/test_sglang.py and tests/apis/test_sglang.py have the same oracle without an engine:

    python -m tests.sglang.test_prompts     rewrites the digests, with the engines of .venv-sglang
"""

import json
import os
import subprocess
from datetime import datetime
from typing import Any

import msgspec
import pytest

from gateway.tokenization.prompt_encoder import PromptEncoder
from tests import ROOT
from tests.sglang.engine import ENVIRONMENT, OLDER, PYTHON, STUBS
from tests.support import corpus
from tests.support.agents import MESSAGES, RESPONSES
from tests.support.corpus import CHATS, COMPLETIONS, SGLANG_VERSIONS, TEMPLATE_NAMES, TEMPLATES, SglangGolden
from tests.support.effort_templates import BODIES as EFFORT_BODIES
from tests.support.effort_templates import SHOWN
from tests.support.effort_templates import TEMPLATES as EFFORT_TEMPLATES
from tests.support.engine_figures import PROMPTS, EngineFigures

INSIDE = ROOT / "tests" / "sglang" / "inside_prompts.py"
TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
DATED = "llama3"
"""Template that prints the date."""


def made_by_engine(version: str) -> SglangGolden:
    sources = {name: (TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in TEMPLATE_NAMES}
    given = {"templates": sources, "chats": CHATS, "completions": COMPLETIONS}
    made = run_inside(version, {**given, "messages": MESSAGES, "responses": RESPONSES})
    by_template = {
        name: {template: [corpus.digest(ids) for ids in each] for template, each in made[name].items()}
        for name in ("chats", "messages", "responses")
    }
    completions = ["-" if each is None else corpus.digest_all(each) for each in made["completions"]]
    asked_at = datetime.fromisoformat(made["asked_at"])
    return SglangGolden(made["engine"], asked_at, completions=completions, **by_template)


def run_inside(version: str, given: dict[str, Any]) -> dict[str, Any]:
    """Prompts that the engine's own code makes of bodies."""
    older = [str(OLDER)] if version != SGLANG_VERSIONS[0] else []
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(STUBS), *older])}
    process = subprocess.run(
        [str(PYTHON), str(INSIDE)],
        input=json.dumps({"tokenizer": str(TOKENIZER), **given}),
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    made: dict[str, Any] = json.loads(process.stdout[process.stdout.rindex("\n{") :])
    return made


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_golden_prompts_equal_this_engines_prompts(version: str, figures: EngineFigures) -> None:
    made, golden = made_by_engine(version), corpus.sglang_golden(version)
    assert made.engine == golden.engine == f"SGLang {version}"
    assert made.completions == golden.completions
    for name in ("chats", "messages", "responses"):
        now, before = getattr(made, name), getattr(golden, name)
        pairs = [pair for each in now if each != DATED for pair in zip(now[each], before[each], strict=True)]
        figures.add_equal(f"SGLang {version}", [pair for pair in pairs if pair[0] != "-"], PROMPTS)
        assert now | {DATED: None} == before | {DATED: None}


def test_efforts_reach_templates_as_the_engine_passes_them() -> None:
    chats = [{"messages": [{"role": "user", "content": "x"}], **body} for body in EFFORT_BODIES]
    nothing: dict[str, Any] = {"completions": [], "messages": [], "responses": []}
    given = {"templates": dict(EFFORT_TEMPLATES), "chats": chats, **nothing}
    made, prompts = run_inside(SGLANG_VERSIONS[0], given), PromptEncoder.load(TOKENIZER)
    texts = {name: [prompts.decode(ids) for ids in each] for name, each in made["chats"].items()}
    shown = {name: tuple(text.partition("|")[0] for text in each) for name, each in texts.items()}
    assert shown == SHOWN


def main() -> None:
    """Write the golden files."""
    for version in SGLANG_VERSIONS:
        encoded = msgspec.json.encode(made_by_engine(version))
        corpus.sglang_golden_path(version).write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")


if __name__ == "__main__":
    main()
