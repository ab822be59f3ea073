"""Benchmark `make bench-instructions`: instructions of the gateway per request, and of the stages in it.

valgrind's callgrind counts the instructions of the compiled gateway outside the kernel. Unlike CPU time they
hardly depend on what else the machine does, so that a change of one percent is seen. Requests go one by one
over one connection, to C workers that publish no events, with verification in alarm: the dearer path.

    in path    from a client's bytes to the worker, and from the worker's bytes to the client
    a stage    a function with all that it calls; stages lie within each other

At 64 workers the choice alone is counted: what the gateway does for each worker once a second comes with many
more requests outside of callgrind, which slows it down by fifty times.

The budget, `loadtest/instructions.json`, is committed: a figure of more than 2 % above it fails the run. A
commit that has a reason for more writes the budget again (UPDATE=1), and says so.
"""

import http.client
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.app import bundled_tokenizer
from loadtest.extent import IS_SMOKE, extent, is_set
from loadtest.fleet import GATEWAY
from loadtest.instruments import InstrumentError, fake_worker, stop
from loadtest.ports import free_port

BUDGET = Path(__file__).parent / "instructions.json"
TOLERANCE = 1.02
START_TIMEOUT_S = 240.0
"""The gateway starts fifty times slower under callgrind."""
PATH = "/v1/chat/completions"
WORDS = ["alpha", "beta", "river", "stone", "cloud", "light", "paper", "green", "table", "seven", "order"]

STAGES: Mapping[str, Sequence[str]] = {
    "in_path": ("ClientConnection___data_received", "UpstreamConnection___data_received"),
    "client": ("ClientConnection___data_received",),
    "route": ("InferenceExchange____route",),
    "tokens": ("PromptSource____tokenize",),
    "decide": ("Router___decide",),
    "choose": ("Router____choose",),
    "observers": ("Observers___notify_decided", "Observers___notify_answered"),
    "send": ("InferenceExchange___send",),
    "worker": ("UpstreamConnection___data_received",),
    "close": ("InferenceExchange___close",),
}
"""Stages by the compiled functions, `Class___method`, that they are the sum of."""

_LINE = re.compile(r"\s*([\d,]+) \([^)]*\)\s+\S*?:CPyDef_\S*?((?:[A-Z]\w*?)___\w+) ")


@dataclass(frozen=True, slots=True)
class InstructionScenario:
    """Scenario: prompts of about `num_bytes`, at a fleet of `num_workers`."""

    name: str
    num_bytes: int
    num_workers: int
    num_requests: int
    stages: Sequence[str] = tuple(STAGES)


ALL = (
    InstructionScenario("small_4w", 60, 4, extent(5, 300)),
    InstructionScenario("small_64w", 60, 64, 100, ("choose",)),
    InstructionScenario("16k_warm", 16_000, 4, 100),
    InstructionScenario("64k_warm", 64_000, 4, 50),
)
SCENARIOS = extent(ALL[:1], ALL)


class ChatBodies:
    """Bodies of chats: short ones that were never asked, or a known conversation and a new turn."""

    def __init__(self, num_bytes: int) -> None:
        self._rng = random.Random(3)
        self._num = 0
        self._known = [[_user(self._text(num_bytes))] for _ in range(8)] if num_bytes > 1000 else []
        self.num_known = len(self._known)

    def next(self) -> bytes:
        self._num += 1
        messages = [_user(self._text(60))]
        if self._known:
            reply = {"role": "assistant", "content": "ok"}
            messages = [*self._known[self._num % len(self._known)], reply, *messages]
        return json.dumps({"model": "m", "messages": messages, "max_tokens": 16}).encode()

    def _text(self, num_bytes: int) -> str:
        words = [self._rng.choice(WORDS) for _ in range(num_bytes // 6)]
        return f"{self._num} " + " ".join(words)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def main() -> int:
    try:
        has_counts = _can_count()
        found = {name: value for scenario in SCENARIOS for name, value in run(scenario, has_counts).items()}
    except InstrumentError as exc:
        print(f"bench-instructions: {exc}", file=sys.stderr)
        return 1
    if IS_SMOKE:
        print("a smoke run: it works; the figures mean nothing, and are compared with nothing")
        return 0
    if is_set("UPDATE"):
        BUDGET.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{BUDGET.name} is written")
        return 0
    budget = json.loads(BUDGET.read_bytes()) if BUDGET.exists() else {}
    return int(any([_compared(name, value, budget.get(name)) for name, value in found.items()]))


def _can_count() -> bool:
    """False where a smoke run has to do without callgrind. Raises InstrumentError for all others."""
    if all(shutil.which(tool) for tool in ("valgrind", "callgrind_control", "callgrind_annotate")):
        return True
    why = "valgrind is not installed (Debian: apt-get install valgrind)"
    if not IS_SMOKE:
        raise InstrumentError(why)
    print(f"without counts: {why}")
    return False


def _compared(name: str, value: int, budget: int | None) -> bool:
    """Print a figure beside its budget; True if it is too much above."""
    if budget is None:
        print(f"{name:24} {value:12,}")
        return False
    is_over = value > budget * TOLERANCE
    print(f"{name:24} {value:12,} {budget:12,} {value / budget - 1:+8.1%}{'  OVER' if is_over else ''}")
    return is_over


def run(scenario: InstructionScenario, has_counts: bool) -> dict[str, int]:
    """Instructions per request of each stage, by scenario and stage."""
    prompts = ChatBodies(scenario.num_bytes)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-bench-")))
        ports = [stack.enter_context(fake_worker("-u", "1")) for _ in range(scenario.num_workers)]
        pid, port = stack.enter_context(_counted_gateway(directory, ports, has_counts))
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        stack.callback(client.close)
        _send(client, prompts, max(scenario.num_requests // 2, 10 * prompts.num_known))
        if has_counts:
            _control("--zero", pid)
        _send(client, prompts, scenario.num_requests)
        if not has_counts:
            return {}
        _control("--dump=measured", pid)
        totals = _totals(next(directory.glob("callgrind.out.*.1")))
    found = {}
    for stage in scenario.stages:
        total = sum(totals.get(name, 0) for name in STAGES[stage])
        found[f"{scenario.name}.{stage}"] = round(total / scenario.num_requests)
    return found


def _send(client: http.client.HTTPConnection, prompts: ChatBodies, num: int) -> None:
    for _ in range(num):
        client.request("POST", PATH, prompts.next(), {"content-type": "application/json"})
        answer = client.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise InstrumentError(f"a request was answered {answer.status}: {body[:200]!r}")


@contextmanager
def _counted_gateway(directory: Path, ports: Sequence[int], has_counts: bool) -> Iterator[tuple[int, int]]:
    """Process id and port of a gateway, under callgrind if it can be."""
    port, admin_port = free_port(), free_port()
    counting = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/callgrind.out.%p"]
    command = [*(counting if has_counts else ()), *GATEWAY, "serve", "--port", str(port)]
    command += ["--admin-port", str(admin_port), "--tokenizer", str(bundled_tokenizer())]
    for worker in ports:
        command += ["--worker", f"http://127.0.0.1:{worker}"]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with (directory / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, text=True)
        try:
            _wait_ready(process, f"http://127.0.0.1:{admin_port}/admin/workers", len(ports), log.name)
            yield process.pid, port
        finally:
            stop(process)


def _wait_ready(process: "subprocess.Popen[str]", url: str, num_workers: int, log: str) -> None:
    """Wait until all workers are up. Raises InstrumentError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                endpoints = json.load(answer)["endpoints"]
            if sum(worker["is_up"] for each in endpoints for worker in each["workers"]) == num_workers:
                return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise InstrumentError(f"the gateway was not ready:\n{Path(log).read_text()[-2000:]}")


def _control(command: str, pid: int) -> None:
    done = subprocess.run(["callgrind_control", command, str(pid)], capture_output=True, text=True)
    if done.returncode or "OK" not in done.stdout:
        raise InstrumentError(f"callgrind_control {command}: {done.stdout}{done.stderr}")


def _totals(counts: Path) -> dict[str, int]:
    """Instructions of each compiled method with all that it calls. Raises InstrumentError without any."""
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=99.99", str(counts)]
    done = subprocess.run(command, capture_output=True, text=True)
    totals: dict[str, int] = {}
    for line in done.stdout.splitlines():
        if found := _LINE.match(line):
            totals[found[2]] = max(totals.get(found[2], 0), int(found[1].replace(",", "")))
    if not totals:
        raise InstrumentError(
            "no compiled function was counted: run it on the wheel, by `make bench-instructions`"
        )
    return totals


if __name__ == "__main__":
    sys.exit(main())
