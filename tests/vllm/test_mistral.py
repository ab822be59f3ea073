"""Prompts in Mistral's own format are the engine's: by its own code, from the request to the tokens.

python -m tests.vllm.test_mistral     writes tests/data/mistral.json anew
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.support.agents import MESSAGES
from tests.support.engine_process import ROOT
from tests.support.mistral import CHATS, GOLDEN, TEXTS, VERSIONS, write_model
from tests.vllm.engine import ENGINE

INSIDE = ROOT / "tests" / "vllm" / "inside_mistral.py"


def made_by_engine(directory: Path) -> dict[str, Any]:
    directories = {version: str(write_model(directory / version, version)) for version in VERSIONS}
    given = {"directories": directories, "chats": CHATS, "messages": MESSAGES, "texts": TEXTS}
    command = [str(ENGINE.parent / "python"), str(INSIDE)]
    done = subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("\n{") :])
    return told


def test_golden_prompts_are_this_engine_s(tmp_path: Path) -> None:
    assert made_by_engine(tmp_path) == json.loads(GOLDEN.read_text())


def _write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        told = made_by_engine(Path(directory))
    parts = [f'"engine": {json.dumps(told.pop("engine"))}']
    for version, made in told.items():
        kinds = []
        for name, prompts in made.items():
            lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in prompts)
            kinds.append(f'"{name}": [\n{lines}\n]')
        parts.append(f'"{version}": {{\n' + ",\n".join(kinds) + "\n}")
    GOLDEN.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    _write()
