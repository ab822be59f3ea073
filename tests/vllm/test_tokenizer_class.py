"""Tokenizers made of a vocabulary equal transformers' own, and its names are those that are listed here.

python -m tests.vllm.test_tokenizer_class     rewrites the golden file
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from gateway.tokenization.class_names import BY_MODEL_TYPE, HUB_IDS_OF_FILES, WRONG_ON_HUB
from tests import ROOT
from tests.support.tokenizer_models import GOLDEN, KINDS, TEXTS, digest, write_model
from tests.vllm.engine import ENGINE

INSIDE = ROOT / "tests" / "vllm" / "tokenizer_classes.py"


def made_by_transformers() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        models = {kind: str(write_model(Path(folder) / f"m{n}", kind)) for n, kind in enumerate(KINDS)}
        given = json.dumps({"models": models, "texts": TEXTS})
        command = [str(ENGINE.parent / "python"), str(INSIDE)]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    made: dict[str, Any] = json.loads(done.stdout[done.stdout.rindex("\n{") :])
    return made


def golden_of(made: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {"class": each["class"], "digests": [digest(ids) for ids in each["ids"]]}
        for kind, each in made["models"].items()
    }


def test_golden_tokens_and_names_are_those_of_transformers() -> None:
    made = made_by_transformers()
    assert golden_of(made) == json.loads(GOLDEN.read_text("utf-8"))
    assert made["by_model_type"] == BY_MODEL_TYPE
    assert made["wrong_on_hub"] == sorted(WRONG_ON_HUB)
    assert made["ids_of_files"] == list(HUB_IDS_OF_FILES)


def main() -> None:
    """Write the golden file."""
    GOLDEN.write_text(json.dumps(golden_of(made_by_transformers()), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
