"""kvgate's prompts equal MLX's, for every chat and text of the corpus that MLX answers.

The engine's own code makes the prompts (`inside_prompts.py`, without a server). They are kept as digests, so
that tests/tokenization/test_mlx.py has the same oracle without an engine:

    python -m tests.mlx.test_prompts     rewrites the digests, with the engine of .venv-mlx
"""

import json
import subprocess
from datetime import datetime
from typing import Any

import msgspec

from tests import ROOT
from tests.mlx.engine import PYTHON
from tests.support import corpus
from tests.support.corpus import CHATS, COMPLETIONS, MLX_GOLDEN, TEMPLATE_NAMES, TEMPLATES, Golden
from tests.support.engine_figures import PROMPTS, EngineFigures

INSIDE = ROOT / "tests" / "mlx" / "inside_prompts.py"
TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
DATED = "llama3"
"""Template that prints the date."""


def made_by_engine() -> Golden:
    sources = {name: (TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in TEMPLATE_NAMES}
    given = {"tokenizer": str(TOKENIZER), "templates": sources, "chats": CHATS, "completions": COMPLETIONS}
    run = subprocess.run(
        [str(PYTHON), str(INSIDE)], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    made: dict[str, Any] = json.loads(run.stdout[run.stdout.rindex("\n{") :])
    chats = {name: [corpus.digest(ids) for ids in each] for name, each in made["chats"].items()}
    completions = ["-" if each is None else corpus.digest_all([each]) for each in made["completions"]]
    return Golden(made["engine"], datetime.fromisoformat(made["asked_at"]), chats, completions)


def answered(made: dict[str, list[str]], golden: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The engine's digests beside the golden ones, of bodies that it answers."""
    pairs = [
        pair
        for name in TEMPLATE_NAMES
        if name != DATED
        for pair in zip(made[name], golden[name], strict=True)
    ]
    return [(one, other) for one, other in pairs if one != "-"]


def test_golden_prompts_equal_the_engines_prompts(figures: EngineFigures) -> None:
    made, golden = made_by_engine(), corpus.golden(MLX_GOLDEN)
    figures.add_equal("MLX (mlx-lm 0.32.2)", answered(made.chats, golden.chats), PROMPTS)
    assert made.engine == golden.engine
    assert made.completions == golden.completions
    assert made.chats | {DATED: None} == golden.chats | {DATED: None}


if __name__ == "__main__":
    MLX_GOLDEN.write_bytes(msgspec.json.format(msgspec.json.encode(made_by_engine()), indent=1) + b"\n")
