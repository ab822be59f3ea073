"""A new engine needs an adapter, a line in `ENGINES` and one file of data: shown with a toy one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests import ROOT
from tests.support.engine_data import FOLDER
from tests.support.patience import patience

pytestmark = pytest.mark.process

PLUGIN = """
from pathlib import Path

from engines import ENGINES
from engines.openai import OpenAi
from gateway.core.engine import EngineMarks, EngineMetrics
from tests.support import engine_data


class Toy(OpenAi):
    name = "toy"
    marks = EngineMarks(owned_by="toyland", metrics="toy_")

    def parse_metrics(self, text: str) -> dict[int, EngineMetrics]:
        return super().parse_metrics(text.replace("toy_", "tgi_"))


ENGINES |= {"toy": Toy(), "openai": ENGINES.pop("openai")}
engine_data.FOLDER = Path(__file__).with_name("engines")
"""
TESTS = [
    "tests/engines/test_contract.py",
    "tests/core/test_figure_bounds.py",
    "tests/requests/test_field_judgement.py",
]
SELECTED = "(toy or one_file or all_kinds) and not help_and_on_its_page"  # that test reads the documents
METRICS = ["toy_batch_current_size 3", "toy_queue_size 1"]


@pytest.mark.parametrize("has_data", [True, False], ids=["with its data", "without"])
def test_a_toy_engine_is_tested_by_its_file(tmp_path: Path, has_data: bool) -> None:
    (tmp_path / "toy_engine.py").write_text(PLUGIN)
    folder = shutil.copytree(FOLDER, tmp_path / "engines")
    if has_data:
        fields = msgspec.json.decode((FOLDER / "mlx.json").read_bytes())["request_fields"]
        models = {"object": "list", "data": [{"id": "m", "owned_by": "toyland"}]}
        data = {"source": "a toy", "models": models, "metrics": METRICS, "request_fields": fields}
        (folder / "toy.json").write_bytes(msgspec.json.encode(data))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "toy_engine", "-k", SELECTED, *TESTS]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=patience(120),
    )
    counts = dict((kind, int(num)) for num, kind in re.findall(r"(\d+) (passed|failed)", done.stdout))
    if has_data:
        assert done.returncode == 0 and counts["passed"] > 15, done.stdout
    else:
        assert done.returncode == 1 and "test_each_engine_has_its_data_in_one_file" in done.stdout, (
            done.stdout
        )
