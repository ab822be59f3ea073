"""Ports for servers that have to know theirs before they listen, or come back at it.

Servers that listen at port 0 need none of this. A port that was found with port 0 and released can become the
next listener's or the next connection's at any time; with several test processes on a machine it does. These
lie below the kernel's own (`net.ipv4.ip_local_port_range`), and each process has a block of them to itself
for as long as it lives, beside all other test runs of the machine.
"""

import atexit
import os
import socket
import sys

FIRST, LAST = 10_000, 32_000
BLOCK = 200


class Ports:
    """Block of ports of this process, handed out in turn."""

    def __init__(self) -> None:
        self._next = 0
        self._block = range(0)
        self._claim: socket.socket | None = None

    def free(self, num: int = 1) -> int:
        """First of `num` ports in a row at which nothing listens."""
        if not self._block:
            self._block = self._claimed()
        for _ in self._block:
            first = self._next if self._next + num <= BLOCK else 0
            self._next = first + num
            ports = self._block[first : first + num]
            if len(ports) == num and all(map(_is_free, ports)):
                return ports[0]
        raise OSError(f"no {num} ports in a row are free in {self._block}")

    def close(self) -> None:
        """Release the block."""
        if self._claim:
            self._claim.close()

    def _claimed(self) -> range:
        """Claim a block by a name in the abstract namespace; the kernel frees it with the process."""
        num_blocks = (LAST - FIRST) // BLOCK
        for i in range(num_blocks):
            number = (os.getpid() + i) % num_blocks
            block = range(FIRST + number * BLOCK, FIRST + (number + 1) * BLOCK)
            if not sys.platform.startswith("linux"):  # no such names: neighbours differ by their process ids
                return block
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0kvgate-test-ports-{number}")
            except OSError:
                claim.close()
            else:
                self._claim = claim
                return block
        raise OSError(f"all ports from {FIRST} to {LAST} belong to other test processes")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


_ports = Ports()
atexit.register(_ports.close)


def free_port(num: int = 1) -> int:
    """Port of loopback that no other test gets, or the first of several in a row."""
    return _ports.free(num)


def sim_ports(num_ranks: int = 1, *, transfers: bool = False) -> dict[str, int]:
    """Fields of a SimConfig for a simulated engine that restarts on the ports that it had."""
    ports = {"port": 1, "events_port": num_ranks, "replay_port": num_ranks}
    if transfers:
        ports |= {"pd_port": num_ranks, "bootstrap_port": 1}
    return {name: free_port(num) for name, num in ports.items()}
