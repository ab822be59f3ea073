"""WebSockets through the gateway: the request for one, and the answer of a worker."""

from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import request
from tests.support.blackbox.scripted_worker import Call
from tests.support.patience import until

REALTIME = "/v1/realtime?model=m"
OFFER = (
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Key", b"AAAAAAAAAAAAAAAAAAAAAA=="),
    (b"Sec-WebSocket-Version", b"13"),
)
AGREED = b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: A\r\n\r\n"


def offer(target: str = REALTIME, *headers: tuple[bytes, bytes]) -> bytes:
    return request("GET", target, None, *OFFER, *headers)


async def tunnels(bench: Bench) -> float:
    return (await bench.gateway.metrics())["kvgate_websocket_tunnels"]


async def all_closed(bench: Bench) -> None:
    async def are_closed() -> bool:
        return await tunnels(bench) == 0

    await until(are_closed, "no WebSocket is open")
    await bench.nothing_in_flight()


async def agree(call: Call) -> None:
    await call.send(AGREED)
    await call.gone.wait()
