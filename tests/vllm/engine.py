"""A real `vllm serve` on loopback, as a process that tests start, kill and start again.

The engine is `.venv-vllm/bin/vllm` (`make test-vllm` installs it) or what env VLLM_BIN names. Its
processes are the API server, the EngineCore (which owns the event sockets) and the model's worker.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine_process import ROOT, EngineProcess

ENGINE = Path(os.environ.get("VLLM_BIN") or ROOT / ".venv-vllm" / "bin" / "vllm").absolute()
OLDER = Path(os.environ.get("VLLM_OLDER") or ENGINE.parents[1] / "older").absolute()
"""Packages of an older version (`install_older.sh`), which go before those of the environment."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache, /server_info
}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Options by which the workers of tests differ."""

    served_model_name: Sequence[str] = ("m",)
    block_size: int = 32  # the smallest that the CPU backend takes
    max_model_len: int = 8192
    num_gpu_blocks_override: int | None = None
    has_events: bool = True
    has_replay: bool = True
    events_endpoint: str | None = None  # None: a fixed port on loopback; "tcp://*:0": a new one each start
    replay_buffer: int | None = None  # batches kept for replay (buffer_steps); None is vLLM's 10,000
    lora: Sequence[tuple[str, Path]] = ()  # adapters by name, from `make_adapter`
    extra_args: Sequence[str] = ()
    extra_env: Sequence[tuple[str, str]] = ()
    is_older: bool = False  # the version in OLDER, which reports no event ports


class VllmWorker(EngineProcess):
    """A vLLM server with its KV events and replay."""

    def __init__(self, model: Path, log: Path, options: VllmOptions | None = None) -> None:
        super().__init__(model, log)
        self.options = options or VllmOptions()

    @property
    def name(self) -> str:
        return self.options.served_model_name[0]

    @property
    def topic(self) -> str:
        return f"kv@127.0.0.1:{self.port}@{self.name}"

    def environment(self) -> Mapping[str, str]:
        older = {"PYTHONPATH": str(OLDER)} if self.options.is_older else {}
        return ENVIRONMENT | older | dict(self.options.extra_env)

    def command(self) -> list[str]:
        options = self.options
        command = [str(ENGINE), "serve", str(self.model), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--served-model-name", *options.served_model_name, "--dtype", "bfloat16"]
        command += ["--max-model-len", str(options.max_model_len), "--block-size", str(options.block_size)]
        command += ["--enforce-eager", "--prefix-caching-hash-algo", "sha256_cbor"]
        command += ["--enable-prompt-tokens-details"]
        command += [] if options.is_older else ["--enable-scale-out"]
        if options.num_gpu_blocks_override is not None:
            command += ["--num-gpu-blocks-override", str(options.num_gpu_blocks_override)]
        if options.has_events:
            command += ["--kv-events-config", json.dumps(self._events_config())]
        if options.lora:
            modules = [f"{name}={path}" for name, path in options.lora]
            command += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", *modules]
        return [*command, *options.extra_args]

    def _events_config(self) -> dict[str, object]:
        config: dict[str, object] = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": self.topic}
        # vLLM binds only where it sees a "*" (else it connects), and "tcp://*:PORT" would be every
        # interface. ZeroMQ reads the port with atoi, so a "*" behind it binds loopback alone; the
        # endpoint comes back with the "*" from /kv_event_sources, and a SUB can connect to that.
        config["endpoint"] = self.options.events_endpoint or f"{self.events_endpoint}*"
        if self.options.has_replay:
            config["replay_endpoint"] = self.replay_endpoint
        if self.options.replay_buffer is not None:
            config["buffer_steps"] = self.options.replay_buffer
        return config
