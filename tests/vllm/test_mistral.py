"""Prompts in Mistral's own format have the tokens that the engine's own code makes of the request.

python -m tests.vllm.test_mistral     rewrites tests/data/mistral.json
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
    process = subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
    golden: dict[str, Any] = json.loads(process.stdout[process.stdout.index("\n{") :])
    return golden


def test_golden_prompts_equal_this_engines_prompts(tmp_path: Path) -> None:
    assert made_by_engine(tmp_path) == json.loads(GOLDEN.read_text())


def _write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        golden = made_by_engine(Path(directory))
    parts = [f'"engine": {json.dumps(golden.pop("engine"))}']
    for version, prompts_by_kind in golden.items():
        kinds = []
        for name, prompts in prompts_by_kind.items():
            lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in prompts)
            kinds.append(f'"{name}": [\n{lines}\n]')
        parts.append(f'"{version}": {{\n' + ",\n".join(kinds) + "\n}")
    GOLDEN.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    _write()
