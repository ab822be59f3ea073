"""A real inference engine on loopback, as a process that tests start, kill and start again.

Each engine has a class of its own (`tests/vllm/engine.py`, `tests/sglang/engine.py`), which knows its command
line. The engine runs in its own session, so that one signal reaches all of its processes.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from loadtest.ports import free_port
from tests.support.patience import Deadline, patience

ROOT = Path(__file__).resolve().parents[2]

READY_TIMEOUT_S = 420.0  # one start takes 20–80 s alone, four at once on two busy cores 240 s
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


class EngineProcess(ABC):
    """Engine process group on fixed ports; `restart` comes back on the same ones."""

    def __init__(self, model: Path, log: Path) -> None:
        self.model = model
        self.log = log
        self.port, self.events_port, self.replay_port = free_port(), free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else None
        return f"{type(self).__name__}({self.url}, pid={pid}, log={self.log})"

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Variables that are set beside ours."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The model's name in requests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.events_port}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    # life --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start and return at once, so that several start side by side; then `wait_ready`."""
        assert self._process is None, f"{self!r} runs already"
        environment = os.environ | self.environment()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return self

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
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

    def restart(self) -> Self:
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
        with _direct.open(self.url + path, timeout=patience(timeout_s)) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: object = None, timeout_s: float = 60.0, **headers: str) -> bytes:
        """Header names in Python spelling: `x_request_id`. Raises HTTPError from status 400 on."""
        data = json.dumps(body).encode() if body is not None else b""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        names["content-type"] = "application/json"
        request = urllib.request.Request(self.url + path, data=data, headers=names, method="POST")
        with _direct.open(request, timeout=patience(timeout_s)) as answer:
            return bytes(answer.read())

    def complete(self, prompt: str | Sequence[int], max_tokens: int = 1, **fields: object) -> dict[str, Any]:
        """A greedy `/v1/completions` without stop at the end token, so that the length is known."""
        body: dict[str, object] = {"model": self.name, "prompt": prompt}
        body |= {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields
        answer: dict[str, Any] = json.loads(self.post("/v1/completions", body))
        return answer

    # processes ---------------------------------------------------------------------------------

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
    deadline = Deadline(timeout_s)
    while not is_true():
        if deadline.has_passed():
            raise TimeoutError(f"not true after {timeout_s:.0f} s of an idle machine")
        time.sleep(POLL_S)
