"""Ports for servers that have to know theirs before they listen, or come back at it.

A server that listens at port 0 needs none of this. A port that was found with port 0 and let go can become
the next listener's or the next connection's at any time; with several test processes on a machine it does.
These lie below those that the kernel hands out (`net.ipv4.ip_local_port_range`), and each process has a block
of them to itself for as long as it lives, whatever other test runs the machine has.
"""

import atexit
import os
import socket
import sys

FIRST, LAST = 10_000, 32_000
BLOCK = 200


class Ports:
    """The block of this process, handed out in turn."""

    def __init__(self) -> None:
        self._next = 0
        self._block = range(0)
        self._claim: socket.socket | None = None

    def free(self, num: int = 1) -> int:
        """The first of `num` ports in a row at which nothing listens."""
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
        """The block is anybody's again."""
        if self._claim:
            self._claim.close()

    def _claimed(self) -> range:
        """A name in the abstract namespace says whose block it is; the kernel frees it with the process."""
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
    """A port of loopback that no other test gets, or the first of several in a row."""
    return _ports.free(num)


def sim_ports(num_ranks: int = 1, *, transfers: bool = False) -> dict[str, int]:
    """Fields of a SimConfig for a simulated engine that restarts on the ports that it had."""
    ports = {"port": 1, "events_port": num_ranks, "replay_port": num_ranks}
    if transfers:
        ports |= {"pd_port": num_ranks, "bootstrap_port": 1}
    return {name: free_port(num) for name, num in ports.items()}
