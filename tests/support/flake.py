"""Program of `make flake`: runs tests again and again, in random order, beside a process that uses a core.

RUNS (20) runs or MINUTES (60), whichever ends first, then a table of the tests that failed and how often. The
output of each run is in `.cache/flake/`; its seed repeats its order and its hashes.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(".cache/flake")
BUSY = "while True: pass"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::(?:\w+\[.*?\]|\S+?))(?: - .*)?$", re.M)
CLOSING = re.compile(r"^=* ?(\d+ .* in [\d.]+s.*?) ?=*$", re.M)


def failures(output: str) -> set[str]:
    """Tests that the summary of a run of pytest (`-ra`) lists as failed."""
    return set(FAILED.findall(output))


def closing(output: str) -> str:
    """Counts of the closing line of a run of pytest."""
    return found[-1] if (found := CLOSING.findall(output)) else "no closing line"


@contextmanager
def busy_core() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(command: Sequence[str], seed: int, log: Path, seconds: float) -> int | None:
    """Exit code of one run in the order of `seed`, None where it had not ended in time."""
    environment = {**os.environ, "ORDER": str(seed), "PYTHONHASHSEED": str(seed)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "-p", "tests.support.shuffle"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.terminate()  # what it has started ends with it
            process.wait()


def main(command: Sequence[str]) -> int:
    num_runs = int(os.environ.get("RUNS") or 20)
    deadline = time.monotonic() + 60 * float(os.environ.get("MINUTES") or 60)
    FOLDER.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the run and the busy process, too
    counts: Counter[str] = Counter()
    num_ended = num_green = 0
    with busy_core():
        for number in range(1, num_runs + 1):
            seed, log = random.SystemRandom().randrange(1 << 32), FOLDER / f"run-{number}.txt"
            code = run(command, seed, log, deadline - time.monotonic())
            if code is None:
                print(f"run {number}: not ended after MINUTES, not counted", flush=True)
                break
            output = log.read_text()
            counts.update(failures(output))
            num_ended, num_green = num_ended + 1, num_green + (code == 0)
            print(f"run {number}: ORDER={seed}: {closing(output)} (exit code {code}), {log}", flush=True)
    for name, count in counts.most_common():
        print(f"{count:4d} of {num_ended}  {name}")
    print(f"{num_green} of {num_ended} runs without a failure")
    return 0 if num_ended and num_green == num_ended else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
