"""Peak of a gateway process's memory while a large body passes."""

from pathlib import Path

from gateway.app import bundled_tokenizer
from tests.support.blackbox.real_gateway import Gateway
from tests.support.patience import until

MB = 1 << 20
ROOM = 50 * MB
LARGE_BODIES = (
    *("--tokenizer", str(bundled_tokenizer()), "--no-tokenizer-probe"),
    *("--probe-interval-s", "0.2", "--max-body-bytes", str(64 * MB)),
)


def memory_of(gateway: Gateway, name: str) -> int:
    """Line of the process's status, in bytes."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(name + ":")]
    return int(line.split()[1]) << 10


def begin_peak(gateway: Gateway) -> int:
    """Current memory; the measurement of its peak starts again here."""
    Path(f"/proc/{gateway.process.pid}/clear_refs").write_text("5")
    return memory_of(gateway, "VmRSS")


async def peak_is_small(gateway: Gateway, start: int, size: int) -> None:
    """Peak of memory since `memory`; the memory is returned."""
    assert memory_of(gateway, "VmHWM") <= start + 4 * size + ROOM
    await until(lambda: memory_of(gateway, "VmRSS") <= start + size, "the memory is given back")
