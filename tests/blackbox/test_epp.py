"""The picker's ports of running gateways: TLS files, and takeovers by the next gateway."""

import socket
from pathlib import Path

import grpc
import pytest

from gateway.epp.health import CHECK, EXT_PROC
from loadtest.ports import free_port
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.upgrades import generations
from tests.support.certificates import Authority
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

LIVE = b"\x08\x01"  # SERVING


async def test_streams_end_with_the_old_gateway_and_new_ones_go_to_the_next(tmp_path: Path) -> None:
    port = free_port()
    async with generations(tmp_path / "socket", "--epp-port", str(port)) as upgrades:
        await upgrades.begin()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary(CHECK.decode())(b"") == LIVE
            held = channel.stream_stream(EXT_PROC.decode())()
            await held.write(b"")  # a message that decides nothing: the stream stays
            old = await upgrades.upgrade()
            assert await channel.unary_unary(CHECK.decode())(b"", wait_for_ready=True) == LIVE
            await old.logged("has taken over")
            assert old.process.returncode is None
            await held.done_writing()
            await held.code()
            assert await old.exited() == 0, "nothing is left for it"


@pytest.mark.parametrize("num_processes", ["1", "2"])
async def test_a_certificate_of_its_own_and_plain_clients(tmp_path: Path, num_processes: str) -> None:
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue()
    flags = ("--epp-port", str(port), "--epp-cert-file", pair.cert, "--epp-key-file", pair.key)
    gateway = await Gateway.start(*flags, "--processes", num_processes)
    try:
        await until(lambda: _listens(port), "the port is bound")
        credentials = grpc.ssl_channel_credentials(Path(authority.file).read_bytes())
        async with (
            grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as secure,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain,
        ):
            for channel in (secure, plain):
                check = channel.unary_unary(CHECK.decode())
                assert await check(b"", wait_for_ready=True) == LIVE
    finally:
        await gateway.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
