"""Handle of a child process in its supervisor: messages, admin requests, and its exit."""

import asyncio
import signal
import socket
from dataclasses import dataclass, field

from gateway.processes.admin import AdminReply, AdminRequest
from gateway.processes.messages import ADMIN_CLIENT, CLIENT
from gateway.processes.reload import Answer
from gateway.server.fd_channel import Channel

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0


def restart_delay_s(num_quick_deaths: int) -> float:
    """Seconds before a process is replaced, by the number of quick deaths in a row."""
    if num_quick_deaths == 0:
        return 0.0
    delay: float = FIRST_DELAY_S * 2 ** min(num_quick_deaths - 1, 16)
    return min(delay, LONGEST_DELAY_S)


def how_it_ended(code: int) -> str:
    """Description of an exit status in words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@dataclass(slots=True, eq=False)
class Process:
    """Row of the shared memory, and the process that has it now."""

    row: int
    pid: int = 0
    channel: Channel | None = None
    is_ready: bool = False
    is_leaving: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = 0.0
    refusal: str | None = None
    num_sent: int = 0
    num_quick_deaths: int = 0
    num_restarts: int = 0
    prepared: Answer | None = None
    generation: int = 0

    @property
    def is_alive(self) -> bool:
        return self.channel is not None and not self.channel.is_closed

    @property
    def has_begun(self) -> bool:
        """True if it serves, or finishes its requests."""
        return self.is_ready or self.is_leaving

    def send(self, message: bytes) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def take(self, file: int) -> None:
        """Pass a client's connection to the process."""
        assert self.channel is not None
        self.num_sent += 1
        self.channel.send(CLIENT, [file])

    async def ask(self, question: AdminRequest) -> AdminReply:
        """Send one request to its admin API, on a connection of its own."""
        if self.channel is None:
            raise ConnectionError("it has ended")
        ours, theirs = socket.socketpair()
        self.channel.send(ADMIN_CLIENT, [theirs.detach()])
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(question.encode())
            return read_reply(await reader.read())
        finally:
            writer.close()


def read_reply(data: bytes) -> AdminReply:
    """Parse a whole reply, read to its end. Raises ConnectionError for an incomplete one."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if len(body) != int(headers.get("content-length", -1)):
        raise ConnectionError("incomplete reply")
    return AdminReply(int(status.split()[1]), headers.get("content-type", "").partition(";")[0], body)
