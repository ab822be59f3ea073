"""Agents over real sockets on loopback: credentials of readers, streams, and slow readers."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gateway.agent.service import KvEvents, serve, server_credentials
from gateway.core.errors import ConfigError
from gateway.replication.agent_feed import describe, open_channel
from gateway.replication.agent_targets import Agents, AgentTls
from gateway.replication.codec import SERVICE, LogRequest, encode_request
from gateway.replication.messages import AgentHello, AgentStatus, BlockSample, LogBatch, SnapshotPart
from tests.support.certificates import Authority
from tests.support.patience import until
from tests.support.stories.agent_serving import EXACT, Served, served

pytestmark = pytest.mark.process


async def code_of(served: Served, agents: Agents, dp_rank: int = 0) -> grpc.StatusCode | None:
    async with open_channel(f"127.0.0.1:{served.port}", agents) as channel:
        try:
            await describe(channel, agents, dp_rank, 10)
        except grpc.aio.AioRpcError as exc:
            code: grpc.StatusCode = exc.code()
            return code
        return None


async def test_a_stream_is_hello_then_a_snapshot_then_changes() -> None:
    async with served() as s:
        s.store(3)
        async with s.read() as read:
            assert await read() == replace(s.hello, num_blocks=3)
            part = await read()
            assert (type(part), part.next_seq) == (SnapshotPart, 3)
            assert await read() == EXACT
            s.store(2)
            assert [(await read()).seq, (await read()).seq] == [3, 4]
        async with s.read(epoch=5, next_seq=4) as read:
            assert [type(await read()) for _ in range(3)] == [AgentHello, LogBatch, AgentStatus]


async def test_metrics_samples_are_streamed_on_request() -> None:
    async with served() as s, s.read(sample_every_s=1) as read:
        s.store(3)
        reported = [await read() for _ in range(4)]
        assert [type(update) for update in reported] == [AgentHello, SnapshotPart, AgentStatus, BlockSample]
        blocks = list(s.inventory.blocks())
        assert (reported[-1].next_seq, reported[-1].num_blocks) == (3, 3)
        assert reported[-1].path == blocks[: len(reported[-1].path)] != []
        assert (await read()).num_blocks == 3  # the next one, although no event came


async def test_a_slow_reader_gets_a_snapshot_and_no_queue() -> None:
    async with served(Served(max_bytes=200_000)) as s, s.read() as read:
        assert [type(await read()) for _ in range(3)] == [AgentHello, SnapshotPart, AgentStatus]
        before = s.rank.journal.num_snapshots
        for _ in range(100):  # 24 MB, while no reader reads
            s.churn(10, blocks=1000)
            await asyncio.sleep(0)
        assert s.rank.journal._num_bytes <= 200_000
        kinds: list[type] = []
        while (update := await read()) != EXACT:
            kinds.append(type(update))
        assert SnapshotPart in kinds and kinds.count(LogBatch) < 1000
        assert s.rank.journal.num_snapshots > before


async def test_a_dropped_rank_ends_its_streams() -> None:
    async with served() as s, s.read() as read:
        assert [type(await read()) for _ in range(3)] == [AgentHello, SnapshotPart, AgentStatus]
        s.rank.is_gone = True
        s.rank.wake()
        with pytest.raises(
            grpc.aio.AioRpcError, match="the engine process of this rank has ended or was replaced"
        ):
            await read()


async def test_readers_that_leave_are_forgotten() -> None:
    async with served() as s:
        async with s.read() as read:
            assert isinstance(await read(), AgentHello)
            assert len(s.rank.changed) == 1
        await until(lambda: not s.rank.changed)


async def test_an_unknown_rank_is_unavailable() -> None:
    async with served() as s:
        assert await code_of(s, Agents(), dp_rank=3) is grpc.StatusCode.UNAVAILABLE


async def test_a_malformed_request_is_rejected() -> None:
    async with served() as s, open_channel(f"127.0.0.1:{s.port}", Agents()) as channel:
        for request, words in (
            (encode_request(LogRequest(9, 0)), "speaks protocol version 1, not 9"),
            (b"\xff", "Subscribe"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await channel.unary_unary(f"/{SERVICE}/Describe")(request)


@pytest.mark.parametrize(("shown", "is_let_in"), [("s3cret", True), ("other", False), (None, False)])
async def test_a_token_is_required(shown: str | None, is_let_in: bool) -> None:
    async with served(token="s3cret") as s:
        code = await code_of(s, Agents(token=shown))
        assert code is (None if is_let_in else grpc.StatusCode.UNAUTHENTICATED)
        if not is_let_in:
            async with s.read(Agents(token=shown)) as read:
                with pytest.raises(grpc.aio.AioRpcError, match="the token is missing or wrong"):
                    await read()


async def test_tls_and_certificates_of_readers(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    pair, shown = authority.issue(), authority.issue("gateway.example")
    ca, wrong = Path(authority.file).read_bytes(), Path(other.file).read_bytes()
    cert, key = Path(shown.cert).read_bytes(), Path(shown.key).read_bytes()
    only_tls = server_credentials(pair.cert, pair.key, "")
    async with served(credentials=only_tls) as s:
        assert await code_of(s, Agents(tls=AgentTls(ca))) is None
        assert await code_of(s, Agents(tls=AgentTls(wrong))) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(s, Agents()) is grpc.StatusCode.UNAVAILABLE
    async with served(credentials=server_credentials(pair.cert, pair.key, authority.file)) as s:
        assert await code_of(s, Agents(tls=AgentTls(ca, key, cert))) is None
        assert await code_of(s, Agents(tls=AgentTls(ca))) is grpc.StatusCode.UNAVAILABLE


async def test_a_changed_certificate_is_loaded(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    pair, renewed = first.issue(), second.issue()
    trusting = [Agents(tls=AgentTls(Path(each.file).read_bytes())) for each in (first, second)]
    async with served(credentials=server_credentials(pair.cert, pair.key, "")) as s:
        assert [await code_of(s, each) is None for each in trusting] == [True, False]
        Path(pair.key).unlink()
        assert await code_of(s, trusting[0]) is None  # the certificate loaded before stays
        Path(pair.cert).write_bytes(Path(renewed.cert).read_bytes())
        Path(pair.key).write_bytes(Path(renewed.key).read_bytes())
        assert [await code_of(s, each) is None for each in trusting] == [False, True]


async def test_an_option_that_cannot_be_served_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        server_credentials(str(tmp_path / "nowhere"), "", "")
    async with served() as s:
        with pytest.raises(ConfigError, match=f"listen: cannot listen on 127.0.0.1:{s.port}"):
            await serve(KvEvents(s.find), f"127.0.0.1:{s.port}")
