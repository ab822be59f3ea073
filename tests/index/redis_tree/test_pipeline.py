import asyncio
import ssl
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.index.redis_tree.pipeline import Pipeline, PipelineLost, PipelineRejected, open_pipeline, pack
from tests.support.certificates import Authority
from tests.support.encrypting_redis import encrypted
from tests.support.redis_servers import Server, redis_server, serving

__all__ = ["redis_server"]


def test_command_is_packed_in_the_redis_protocol() -> None:
    assert pack(b"GET", b"\r\n") == b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n"
    assert pack(b"SELECT", 10) == b"*2\r\n$6\r\nSELECT\r\n$2\r\n10\r\n"


async def test_answers_come_in_the_order_of_their_commands(redis_server: Server) -> None:
    pipeline = await open_pipeline({"path": str(redis_server.socket)}, 5)
    asked = [pipeline.ask(pack(b"ECHO", b"%d" % i)) for i in range(100)]
    asked[3].cancel()  # its caller has gone
    assert [await answer for i, answer in enumerate(asked) if i != 3] == [
        b"%d" % i for i in range(100) if i != 3
    ]
    assert repr(pipeline) == "Lane(open=True, waiting=0)"
    pipeline.close()


def test_pipeline_runs_on_uvloop(redis_server: Server) -> None:
    async def ask() -> Any:
        pipeline = await open_pipeline({"path": str(redis_server.socket)}, 5)
        try:
            return await pipeline.ask(pack(b"PING"))
        finally:
            pipeline.close()

    assert uvloop.run(ask()) == b"PONG"


async def test_pipeline_verifies_the_servers_certificate(redis_server: Server, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    async with encrypted(redis_server.port, ours.issue().context()) as port:
        url = f"rediss://127.0.0.1:{port}"
        pipeline = await open_pipeline(redis_server.options(redis=url, redis_ca_file=ours.file).connection, 5)
        assert await pipeline.ask(pack(b"PING")) == b"PONG"
        pipeline.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await open_pipeline(redis_server.options(redis=url, redis_ca_file=others.file).connection, 5)


async def test_error_of_the_server_is_raised(redis_server: Server) -> None:
    pipeline = await open_pipeline({"path": str(redis_server.socket)}, 5)
    with pytest.raises(PipelineRejected, match="unknown command"):
        await pipeline.ask(pack(b"NOVELTY"))
    pipeline.close()


ERRORS = {
    "a replica": "READONLY You can't write against a read only replica.",
    "another node's": "MOVED 866 127.0.0.1:7001",
    "on its way": "ASK 866 127.0.0.1:7001",
    "in parts": "TRYAGAIN Multiple keys request during rehashing of slot",
    "no quorum": "CLUSTERDOWN The cluster is down",
    "without its master": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "starting": "LOADING Redis is loading the dataset in memory",
}


@pytest.mark.parametrize("name", ERRORS)
async def test_pipeline_to_a_server_that_is_not_the_master_is_lost(name: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"PING\r\n")
            writer.write(f"-{ERRORS[name]}\r\n".encode())
            await reader.read()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as others:
        host, port = others.sockets[0].getsockname()
        pipeline = await open_pipeline({"host": host, "port": port}, 5)
        with pytest.raises(PipelineLost, match=ERRORS[name].partition(" ")[0]):
            await pipeline.ask(pack(b"PING"))
        assert not pipeline.is_open
        with pytest.raises(PipelineLost, match="not connected"):
            await pipeline.ask(pack(b"PING"))
        await asyncio.sleep(0)


async def test_pipeline_to_a_real_replica_is_lost_at_the_first_write(redis_server: Server) -> None:
    with serving("--replicaof", f"127.0.0.1 {redis_server.port}") as replica:
        pipeline = await open_pipeline({"path": str(replica.socket)}, 5)
        with pytest.raises(PipelineLost, match="READONLY"):
            await pipeline.ask(pack(b"SET", b"a", b"b"))
        await asyncio.sleep(0)


async def test_lost_pipeline_fails_its_commands_in_flight() -> None:
    with serving() as server:
        pipeline = await open_pipeline({"host": "127.0.0.1", "port": server.port}, 5)
        with server.paused():
            answer = pipeline.ask(pack(b"PING"))
            pipeline.close()
        with pytest.raises(PipelineLost):
            await answer
    with pytest.raises(PipelineLost, match="not connected"):
        await pipeline.ask(pack(b"PING"))
    with pytest.raises(PipelineLost, match="not connected"):
        await Pipeline().ask(pack(b"PING"))


@pytest.mark.parametrize(
    ("login", "is_accepted"),
    [
        ({"password": "secret"}, True),
        ({"username": "default", "password": "secret", "db": 3}, True),
        ({"password": "no"}, False),
    ],
)
async def test_pipeline_logs_in_and_selects_the_database(login: dict[str, Any], is_accepted: bool) -> None:
    with serving("--requirepass", "secret") as server:
        if not is_accepted:
            with pytest.raises(PipelineRejected, match="WRONGPASS"):
                await open_pipeline({"path": str(server.socket), **login}, 5)
            return
        pipeline = await open_pipeline({"path": str(server.socket), **login}, 5)
        assert b" db=%d " % login.get("db", 0) in await pipeline.ask(pack(b"CLIENT", b"INFO"))
        pipeline.close()


async def test_opening_times_out_at_a_silent_server(redis_server: Server) -> None:
    with redis_server.paused(), pytest.raises(TimeoutError):
        await open_pipeline({"path": str(redis_server.socket), "password": "any"}, 0.05)
    await asyncio.sleep(0)


@pytest.mark.parametrize("answer", [b"?no redis\r\n", b"+PONG\r\n+PONG\r\n"])
async def test_pipeline_to_a_server_that_is_no_redis_is_lost(answer: bytes) -> None:
    has_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        pipeline = await open_pipeline({"host": "127.0.0.1", "port": port}, 5)
        first = pipeline.ask(pack(b"PING"))
        with suppress(PipelineLost):
            assert await first == b"PONG"
        with pytest.raises(PipelineLost):
            await pipeline.ask(pack(b"PING"))
        assert not pipeline.is_open
        await has_ended.wait()
