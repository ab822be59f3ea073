"""A real MLX server (`mlx_lm.server`) on loopback and CPU, as a process that tests start and start again.

The engine is in `.venv-mlx` (`make test-engines` installs it), or is that of the python in env MLX_PYTHON.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.engine_process import ROOT, EngineProcess

NUM_KEPT = 64
"""Prompts that the server keeps. Its default of 10 is less than ten conversations need: an answer that is
tokenized otherwise as part of the next prompt leaves its own entry behind."""

PYTHON = Path(os.environ.get("MLX_PYTHON") or ROOT / ".venv-mlx" / "bin" / "python").absolute()


class MlxWorker(EngineProcess):
    """An MLX server: no KV events, no metrics."""

    @property
    def name(self) -> str:
        """Absolute path of the model, by which the server lists it."""
        return str(self.model.resolve())

    def environment(self) -> Mapping[str, str]:
        home = self.log.parent / "hf"
        (home / "hub").mkdir(parents=True, exist_ok=True)  # without it /v1/models is an empty 200
        return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

    def command(self) -> list[str]:
        server = [str(PYTHON), "-m", "mlx_lm", "server", "--model", self.name]
        server += ["--prompt-cache-size", str(NUM_KEPT)]
        return [*server, "--host", "127.0.0.1", "--port", str(self.port)]
