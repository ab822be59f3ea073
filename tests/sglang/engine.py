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
from urllib.error import HTTPError

from loadtest.ports import free_port
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


TRANSFERS = {  # of a prefill or decode worker, by NIXL over loopback
    "NIXL_ON_CPU": "1",  # stubs/sitecustomize.py
    "UCX_TLS": "tcp,self,sm,cma,posix,sysv",
    "UCX_NET_DEVICES": "lo",
    "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_LOCAL_IP_NIC": "lo",
    "HOST_IP": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Settings of one server. `num_tokens` is the size of a rank's cache; `is_older`: SGLang 0.5.10.post1;
    `role` is "prefill", "decode", or empty for both."""

    page_size: int = 1
    is_older: bool = False
    num_tokens: int = 16_384
    lora: Sequence[tuple[str, Path]] = ()
    num_ranks: int = 1
    role: str = ""
    extra_args: Sequence[str] = ()


class SglangWorker(EngineProcess):
    """An SGLang server with its KV events and replay."""

    def __init__(self, model: Path, log: Path, options: SglangOptions | None = None) -> None:
        super().__init__(model, log)
        self.options = options or SglangOptions()
        if self.options.num_ranks > 1:  # each rank publishes and replays at a port of its own
            self.events_port, self.replay_port = (free_port(self.options.num_ranks) for _ in range(2))
        self.bootstrap_port = free_port()

    @property
    def name(self) -> str:
        return "m"

    def environment(self) -> Mapping[str, str]:
        older = [str(OLDER)] if self.options.is_older else []
        ours = {"PYTHONPATH": os.pathsep.join([str(STUBS), *older])}
        if self.options.num_ranks > 1:
            ours["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(self.options.num_ranks)))
        return ENVIRONMENT | ours | (TRANSFERS if self.options.role else {})

    def command(self) -> list[str]:
        options = self.options
        command = [str(PYTHON), "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--model-path", str(self.model), "--served-model-name", self.name, "--device", "cpu"]
        command += ["--attention-backend", "torch_native", "--disable-overlap-schedule"]
        command += ["--disable-cuda-graph", "--mem-fraction-static", "0.1"]
        command += ["--page-size", str(options.page_size), "--max-total-tokens", str(options.num_tokens)]
        command += ["--enable-metrics", "--enable-cache-report"]
        command += ["--kv-events-config", json.dumps(self._events_config())]
        if options.num_ranks > 1:
            command += ["--dp-size", str(options.num_ranks)]
        if options.role:
            command += ["--disaggregation-mode", options.role, "--disaggregation-transfer-backend", "nixl"]
            command += ["--disaggregation-bootstrap-port", str(self.bootstrap_port)]
        if options.role == "decode":
            command += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        if options.lora:
            command += ["--enable-lora", "--lora-backend", "torch_native", "--lora-paths"]
            command += [f"{name}={path}" for name, path in options.lora]
        return [*command, *options.extra_args]

    def flush(self) -> bool:
        """Empty the cache; False where the server refuses it, since a request runs."""
        try:
            return b"flush" in self.post("/flush_cache").lower()
        except HTTPError as error:
            with error:
                if error.code != 400:
                    raise
                return False

    def _events_config(self) -> dict[str, object]:
        # Without the newer `bind` only an endpoint with a "*" is bound; ZeroMQ reads the digits before it.
        how = {"endpoint": f"{self.events_endpoint}*"}
        if not self.options.is_older:
            how = {"endpoint": self.events_endpoint, "bind": True}
        return {"publisher": "zmq", "replay_endpoint": self.replay_endpoint, **how}
