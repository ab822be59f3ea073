"""A real SGLang server on loopback and CPU, as a process that tests start, kill and start again.

The engine is in `.venv-sglang` (`make test-engines` installs it), or is that of the python in env
SGLANG_PYTHON. Its processes are the API server, a scheduler for each rank (which owns the event sockets) and
the detokenizer.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine_process import ROOT, EngineProcess

PYTHON = Path(os.environ.get("SGLANG_PYTHON") or ROOT / ".venv-sglang" / "bin" / "python").absolute()
OLDER = PYTHON.parents[1] / "older"
STUBS = Path(__file__).parent / "stubs"

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_DISABLE_REQUEST_LOGGING": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "NO_PINNING": "1",  # stubs/sitecustomize.py
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Settings of one server. `num_tokens` is the size of its cache; `is_older`: SGLang 0.5.10.post1."""

    page_size: int = 1
    is_older: bool = False
    num_tokens: int = 16_384
    lora: Sequence[tuple[str, Path]] = ()
    extra_args: Sequence[str] = ()


class SglangWorker(EngineProcess):
    """An SGLang server with its KV events and replay."""

    def __init__(self, model: Path, log: Path, options: SglangOptions | None = None) -> None:
        super().__init__(model, log)
        self.options = options or SglangOptions()

    @property
    def name(self) -> str:
        return "m"

    def environment(self) -> Mapping[str, str]:
        older = [str(OLDER)] if self.options.is_older else []
        return ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(STUBS), *older])}

    def command(self) -> list[str]:
        options = self.options
        command = [str(PYTHON), "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--model-path", str(self.model), "--served-model-name", self.name, "--device", "cpu"]
        command += ["--attention-backend", "torch_native", "--disable-overlap-schedule"]
        command += ["--disable-cuda-graph", "--mem-fraction-static", "0.1"]
        command += ["--page-size", str(options.page_size), "--max-total-tokens", str(options.num_tokens)]
        command += ["--enable-metrics", "--enable-cache-report"]
        command += ["--kv-events-config", json.dumps(self._events_config())]
        if options.lora:
            command += ["--enable-lora", "--lora-backend", "torch_native", "--lora-paths"]
            command += [f"{name}={path}" for name, path in options.lora]
        return [*command, *options.extra_args]

    def _events_config(self) -> dict[str, object]:
        # Without the newer `bind` only an endpoint with a "*" is bound; ZeroMQ reads the digits before it.
        how = {"endpoint": f"{self.events_endpoint}*"}
        if not self.options.is_older:
            how = {"endpoint": self.events_endpoint, "bind": True}
        return {"publisher": "zmq", "replay_endpoint": self.replay_endpoint, **how}
