"""The gateway as users run it: a process, its ports, its log. For tests marked `process` or `vllm`."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

from loadtest.fleet import GATEWAY
from tests.support.patience import Deadline, patience

LISTENING = re.compile(r"listening on (http://\S+), admin on (http://\S+)")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 45.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def clean_environment() -> dict[str, str]:
    """Environment of the tests without the variables that configure a gateway."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


def split(flags: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Flags, and the environment with those written as KVGATE_NAME=VALUE: rare options have no flag."""
    variables = [flag for flag in flags if flag.startswith("KVGATE_")]
    set_here = dict((name, value) for name, _, value in (each.partition("=") for each in variables))
    return [flag for flag in flags if flag not in variables], clean_environment() | set_here


def written(log: IO[str]) -> str:
    """Text of the log so far.

    The process shares the position of the file: after `seek(0)` it would overwrite its own first lines.
    """
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()


class GatewayProcess:
    """`kvgate serve` on free loopback ports; a context manager that also checks how it ended."""

    def __init__(self, *flags: str, expect_errors: bool = False) -> None:
        self._flags = flags
        self._expect_errors = expect_errors
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in __exit__
        self.url = self.admin_url = ""

    def __enter__(self) -> "GatewayProcess":
        flags, environment = split(self._flags)
        command = [*GATEWAY, "serve", "--port", "0", "--admin-port", "0", *flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment
        )
        try:
            self._until(lambda: LISTENING.search(self.log()))
        except TimeoutError:
            self.process.kill()
            raise
        found = LISTENING.search(self.log())
        assert found
        self.url, self.admin_url = found.groups()
        if "--worker" in self._flags:
            self._until(self.is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.stop()
        log = self.log()
        self._log.close()
        if exc is None and not self._expect_errors:
            assert code == 0, f"exit code {code}:\n{log}"
            assert "Traceback" not in log and " ERROR " not in log, log

    def stop(self) -> int:
        """Send SIGTERM, and SIGKILL if it does not end; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience(STOP_TIMEOUT_S))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def log(self) -> str:
        return written(self._log)

    def admin(self, path: str) -> Any:
        with _direct.open(self.admin_url + path, timeout=patience(10)) as answer:
            return json.load(answer)

    def metrics(self) -> str:
        with _direct.open(self.admin_url + "/metrics", timeout=patience(10)) as answer:
            text: str = answer.read().decode()
            return text

    def is_ready(self) -> bool:
        try:
            with _direct.open(self.url + "/ready", timeout=patience(5)):
                return True
        except urllib.error.URLError:
            return False

    def workers(self) -> list[dict[str, Any]]:
        """Every worker of the fleet as the admin API shows it."""
        return [w for endpoint in self.admin("/admin/workers")["endpoints"] for w in endpoint["workers"]]

    def worker_ids(self) -> list[str]:
        return [worker["id"] for worker in self.workers()]

    def streams(self) -> list[str]:
        return [worker["stream"] for worker in self.workers() if worker["is_up"]]

    def in_flight(self) -> int:
        return sum(worker["in_flight"] for worker in self.workers())

    @staticmethod
    def check(*flags: str) -> str:
        """Output of `kvgate check`; it must have succeeded."""
        given, environment = split(flags)
        command = [*GATEWAY, "check", *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _until(self, is_true: Any) -> None:
        deadline = Deadline(START_TIMEOUT_S)
        while not is_true():
            if self.process.poll() is not None or deadline.has_passed():
                raise TimeoutError(f"the gateway did not start:\n{self.log()}")
            time.sleep(0.02)
