import pytest

from gateway.commands.index_survey import table
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.redis.client import UnusableRedis
from tests.support.patience import until
from tests.support.redis_servers import Server, redis_server, server
from tests.support.shared_tree import (
    PATH,
    ROOT,
    A,
    B,
    C,
    path_hashes,
    reported,
    stored,
    surveying,
)

__all__ = ["redis_server", "server"]


async def test_each_worker_is_shown_with_its_memory(server: Server) -> None:
    async with reported(server), surveying(server) as (survey, _):
        await survey.check()
        first, second, third = await survey.rows()
        assert (first.worker, first.blocks, first.num_edges) == (A, set(path_hashes(PATH)), 1)
        assert (first.holder, first.epoch > 1_700_000_000_000, first.model) == ("host:1:ab", True, "model-m")
        assert (second.worker, second.stream, len(second.blocks or ())) == (B, StreamState.BLIND, 30)
        assert first.num_bytes == second.num_bytes > 160  # half of the run that they share
        assert (third.worker, third.blocks, third.published) == (C, None, None)
        assert survey.shared == {(path_hashes(PATH)[0], 40): 2}
        head, *lines = table([first, second, third])
        assert head.split()[:4] == ["worker", "stream", "blocks", "edges"]
        assert [line.split()[:4] for line in lines] == [
            ["a:1", "exact", "40", "1"],
            ["b:1", "blind", "30", "1"],
            ["c:1", "-", "-", "-"],
        ]
        assert repr(survey).endswith("kvgate:)")


async def test_a_dropped_worker_is_published_again_by_its_leader(server: Server) -> None:
    async with reported(server) as service, surveying(server) as (survey, _):
        assert await survey.drop_worker(A) == 1
        assert [row.worker for row in await survey.rows()] == [B, C]
        service.index.apply(A, stored([8], 0))  # is refused

        async def is_published() -> bool:
            return [len(row.blocks or ()) for row in await survey.rows()] == [41, 30, 0]

        await until(is_published)
        with pytest.raises(ConfigError, match="no worker in Redis is named 'z:1'"):
            await survey.drop_worker("z:1")


@pytest.mark.parametrize("schema", ["kvgate:1", "kvgate:0", "somebody's"])
async def test_drop_all_removes_keys_of_any_version(server: Server, schema: str) -> None:
    async with reported(server):
        pass
    server.ask("SET", "kvgate:schema", schema)
    server.ask("SET", "other:key", 1)
    async with surveying(server) as (survey, _):
        if schema != "kvgate:1":
            with pytest.raises(UnusableRedis, match="kvgate index drop --all"):
                await survey.check()
        assert await survey.drop_all() > 8
    with server.direct() as client:
        assert list(client.scan_iter()) == [b"other:key"]


async def test_inconsistent_keys_are_a_fault(server: Server) -> None:
    async with reported(server), surveying(server) as (survey, _):
        head = path_hashes(PATH)[0].to_bytes(8, "little")
        server.ask("SET", f"kvgate:{{{ROOT:016x}}}:e".encode() + head, b"\1\0\0\0\0\0" + head)
        first, *_ = await survey.rows()
        assert first.faults == [f"edge {path_hashes(PATH)[0]:016x} does not list this worker"]
        server.ask("SET", f"kvgate:{{{ROOT:016x}}}:e".encode() + head, b"\1")
        assert "does not decode" in (await survey.rows())[0].faults[0]
        server.ask("DEL", f"kvgate:{{{ROOT:016x}}}:e".encode() + head)
        assert "is not there" in (await survey.rows())[0].faults[0]


async def test_no_command_scans_the_keyspace(server: Server) -> None:
    async with reported(server), surveying(server) as (survey, client):
        server.ask("CONFIG", "RESETSTAT")
        await survey.rows()
        await survey.drop_worker(A)
        await survey.drop_all()
        stats = await client.info("commandstats")
        assert not {"cmdstat_keys", "cmdstat_scan"} & set(stats)
