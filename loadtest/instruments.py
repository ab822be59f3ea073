"""Instruments in C: compiled into `.cache/` when they are missing or older than their source.

worker    a fake vLLM worker of a few microseconds per request, `c/worker.c`
loadgen   a closed loop on a loopback port that reads the CPU time of the processes in between,
`c/loadgen.c`
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

SOURCES = Path(__file__).parent / "c"
BUILT = Path(__file__).parents[1] / ".cache" / "instruments"
GRACE_S = 30.0
"""Seconds beyond its own duration that a load generator may take before it is stopped."""


class BenchError(Exception):
    """Run with figures that would be misleading."""


class InstrumentError(Exception):
    """Instrument that cannot be built, or that failed; the message has the remedy."""


class LoadgenReading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Readings of loadgen in the measured part. `cpu_us` is that of the watched processes together."""

    seconds: float
    num_requests: int
    num_errors: int
    num_chunks: int
    latency_p50_us: int
    latency_p99_us: int
    first_byte_p50_us: int
    first_byte_p99_us: int
    one_way_p50_us: int
    one_way_p99_us: int
    cpu_us: float
    own_cpu_us: float
    rss_mb: float

    @property
    def cpu_us_per_request(self) -> float:
        return self.cpu_us / self.num_requests

    @property
    def cpu_us_per_chunk(self) -> float:
        return self.cpu_us / self.num_chunks

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.seconds


@dataclass(frozen=True, slots=True)
class LoadgenLoad:
    """Load by loadgen. `connections` send in turn the bodies of the file, each its own, and show a key.

    With `is_once` no body is sent twice: the load ends with the bodies where they do not last as long.
    """

    path: str
    connections: int
    seconds: float
    warm_up_s: float = 0.5
    think_ms: int = 0
    is_stream: bool = False
    key: str = ""
    is_once: bool = False


def build(name: str) -> Path:
    """Build the program of `c/<name>.c`. Raises InstrumentError."""
    program = BUILT / name
    sources = [SOURCES / f"{name}.c", *SOURCES.glob("*.h")]
    if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise InstrumentError("no C compiler: `cc` is not found; install one (Debian: apt-get install gcc)")
    BUILT.mkdir(parents=True, exist_ok=True)
    unfinished = BUILT / f"{name}-{os.getpid()}"  # others build and run it at the same time
    command = [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-o", str(unfinished), str(sources[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise InstrumentError(f"{sources[0].name} does not compile:\n{done.stderr}")
    unfinished.replace(program)
    return program


def measure(port: int, bodies: Path, load: LoadgenLoad, pids: Sequence[int] = ()) -> LoadgenReading:
    """Put the load on a loopback port. Raises InstrumentError where loadgen fails."""
    command = [str(build("loadgen")), str(port), "-j", "1", "-B", str(bodies), "-p", load.path]
    command += ["-c", str(load.connections), "-d", str(load.seconds), "-w", str(load.warm_up_s)]
    command += ["-z", str(load.think_ms), "-s", str(int(load.is_stream)), "-P", ",".join(map(str, pids))]
    command += ["-o", str(int(load.is_once))]
    command += ["-a", load.key] if load.key else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=load.seconds + load.warm_up_s + GRACE_S
        )
    except subprocess.TimeoutExpired as exc:
        raise InstrumentError("loadgen does not end by itself") from exc
    if done.returncode != 0:
        raise InstrumentError(f"loadgen failed: {done.stderr}")
    return msgspec.json.decode(done.stdout, type=LoadgenReading)


@contextmanager
def fake_worker(*flags: str) -> Iterator[int]:
    """Port of a running worker; flags as in the head of `c/worker.c`."""
    process = subprocess.Popen([str(build("worker")), "0", *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        if len(ready) != 2:
            raise InstrumentError("the fake worker did not start")
        yield int(ready[1])
    finally:
        stop(process)


def stop(process: "subprocess.Popen[str]", timeout_s: float = 20.0) -> None:
    """Send SIGTERM, and SIGKILL if that does not help; by its id, and with its pipe closed."""
    process.terminate()
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
