"""A real `vllm serve` on loopback, as a process that tests start, kill and start again.

The engine is `.venv-vllm/bin/vllm` (`make test-vllm` installs it) or what env VLLM_BIN names. It
runs in its own session, so that one signal reaches all three of its processes: the API server, the
EngineCore (which owns the event sockets) and the model's worker.
"""

import json
import os
import random
import signal
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from loadtest.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(os.environ.get("VLLM_BIN") or ROOT / ".venv-vllm" / "bin" / "vllm").absolute()
MODEL = ROOT / ".cache" / "model"

READY_TIMEOUT_S = 420.0  # one start takes 20–60 s alone, four at once on two busy cores 240 s
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1

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

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What differs between the workers that tests start."""

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


def ensure_model(model: Path = MODEL) -> Path:
    """The random-weight model, made once with the engine's own python."""
    if not (model / "config.json").exists():
        partial = model.with_name(f"{model.name}.{os.getpid()}")
        maker = [ENGINE.parent / "python", ROOT / "tests" / "vllm" / "make_model.py", partial]
        model.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(maker, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        partial.rename(model)  # complete or not there
    return model


def make_adapter(directory: Path) -> Path:
    """A LoRA adapter with random weights for our model, in the files that PEFT writes."""
    rng = random.Random(directory.name)
    tensors: dict[str, object] = {}
    data = b""
    for layer, (module, width) in product(range(8), (("q_proj", 512), ("v_proj", 256))):
        for half, shape in (("A", (8, 512)), ("B", (width, 8))):
            values = [rng.uniform(-0.05, 0.05) for _ in range(shape[0] * shape[1])]
            packed = struct.pack(f"<{len(values)}f", *values)
            place = [len(data), len(data) + len(packed)]
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{half}.weight"
            tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": place}
            data += packed
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "bias": "none"}
    config |= {"target_modules": ["q_proj", "v_proj"], "inference_mode": True}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    header = json.dumps(tensors).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return directory


class VllmWorker:
    """One engine process group on fixed ports; `restart` comes back on the same ones."""

    def __init__(self, model: Path, log: Path, options: VllmOptions | None = None) -> None:
        self.model = model
        self.log = log
        self.options = options or VllmOptions()
        self.port, self.events_port, self.replay_port = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else None
        return f"VllmWorker({self.url}, pid={pid}, log={self.log})"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def topic(self) -> str:
        return f"kv@127.0.0.1:{self.port}@{self.options.served_model_name[0]}"

    @property
    def events_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.events_port}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    # life --------------------------------------------------------------------------------------

    def start(self) -> "VllmWorker":
        """Start and return at once, so that several start side by side; then `wait_ready`."""
        assert self._process is None, f"{self!r} runs already"
        environment = os.environ | ENVIRONMENT | dict(self.options.extra_env)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return self

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> "VllmWorker":
        try:
            wait_until(self._is_ready_or_dead, timeout_s)
        except TimeoutError:
            raise TimeoutError(f"{self!r} is not ready after {timeout_s:.0f} s:\n{self.log_tail()}") from None
        if not self.is_ready():
            raise RuntimeError(f"{self!r} ended while it started:\n{self.log_tail()}")
        return self

    def stop(self) -> None:
        """Let the engine shut down; what is left after a while is killed.

        Without its API server an EngineCore stays for good, with its sockets, and needs no wait.
        """
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(TimeoutError):
                wait_until(lambda: not self._living(), STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait until its ports are free again."""
        if self._process is not None:
            if self._living():
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            wait_until(lambda: not self._living(), STOP_TIMEOUT_S)
            self._process = None

    def restart(self) -> "VllmWorker":
        """Kill, if it still lives, and start on the same ports. Not ready yet on return."""
        self.kill()
        return self.start()

    def is_ready(self) -> bool:
        try:
            with _direct.open(f"{self.url}/health", timeout=2.0):
                return True
        except OSError:
            return False

    def living_pids(self) -> list[int]:
        """API server, EngineCore and model worker, as far as they live."""
        return self._living()

    def log_tail(self, num_lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    # requests ----------------------------------------------------------------------------------

    def get(self, path: str, timeout_s: float = 10.0) -> bytes:
        with _direct.open(self.url + path, timeout=timeout_s) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: object = None, timeout_s: float = 60.0, **headers: str) -> bytes:
        """Header names in Python spelling: `x_request_id`. Raises HTTPError from status 400 on."""
        data = json.dumps(body).encode() if body is not None else b""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        names["content-type"] = "application/json"
        request = urllib.request.Request(self.url + path, data=data, headers=names, method="POST")
        with _direct.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())

    def complete(self, prompt: str | Sequence[int], max_tokens: int = 1, **fields: object) -> dict[str, Any]:
        """A greedy `/v1/completions` without stop at the end token, so that the length is known."""
        body: dict[str, object] = {"model": self.options.served_model_name[0], "prompt": prompt}
        body |= {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields
        answer: dict[str, Any] = json.loads(self.post("/v1/completions", body))
        return answer

    # command line ------------------------------------------------------------------------------

    def command(self) -> list[str]:
        options = self.options
        command = [str(ENGINE), "serve", str(self.model), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--served-model-name", *options.served_model_name, "--dtype", "bfloat16"]
        command += ["--max-model-len", str(options.max_model_len), "--block-size", str(options.block_size)]
        command += ["--enforce-eager", "--prefix-caching-hash-algo", "sha256_cbor"]
        command += ["--enable-prompt-tokens-details", "--enable-scale-out"]
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

    def _is_ready_or_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None or self.is_ready()

    def _living(self) -> list[int]:
        if self._process is None:
            return []
        self._process.poll()  # reap our own child
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """In our process's session and no zombie (which the init of a container may never reap)."""
        assert self._process is not None
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        state, _, _, session = stat.rpartition(")")[2].split()[:4]
        return int(session) == self._process.pid and state != "Z"


def wait_until(is_true: Callable[[], object], timeout_s: float) -> None:
    """Poll something outside this process; TimeoutError if it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true after {timeout_s:.0f} s")
        time.sleep(POLL_S)
