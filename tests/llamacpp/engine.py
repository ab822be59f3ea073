"""A real server of llama.cpp on loopback and CPU, as a process that tests start and start again.

The engine is in `.venv-llamacpp` (`make test-engines` builds it), or is the binary in env LLAMA_SERVER.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.engine_process import ROOT, EngineProcess

SERVER = Path(os.environ.get("LLAMA_SERVER") or ROOT / ".venv-llamacpp" / "bin" / "llama-server").absolute()
GGUF = ROOT / ".venv-llamacpp" / "gguf-py"
NUM_SLOTS, SLOT_TOKENS = 4, 4096


def ensure_gguf(python: Path, model: Path) -> Path:
    """The model as llama.cpp's file, made once with an environment's `python`, which has torch."""
    made = model.with_suffix(".gguf")
    if not made.exists():
        partial = made.with_name(f"{made.name}.{os.getpid()}")
        maker = [python, ROOT / "tests" / "llamacpp" / "make_gguf.py", model, partial]
        run = subprocess.run(
            maker, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(GGUF)}
        )
        assert run.returncode == 0, run.stderr
        partial.rename(made)  # complete or not there
    return made


class LlamaCppWorker(EngineProcess):
    """A server with NUM_SLOTS slots; no KV events."""

    @property
    def name(self) -> str:
        return "m"

    def environment(self) -> Mapping[str, str]:
        return {}

    def command(self) -> list[str]:
        server = [str(SERVER), "--host", "127.0.0.1", "--port", str(self.port), "--metrics"]
        slots = ["--parallel", str(NUM_SLOTS), "--ctx-size", str(NUM_SLOTS * SLOT_TOKENS)]
        return [*server, *slots, "--model", str(self.model), "--alias", self.name, "--threads", "1"]
