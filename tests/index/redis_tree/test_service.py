"""`RadixService` on a real server, also when the server is slow, down, emptied or full."""

import asyncio
from contextlib import suppress

import pytest

from gateway.commands.index_survey import Survey
from gateway.core.event_stream import StreamState
from gateway.index.redis_tree import service
from gateway.index.redis_tree.pipeline import PipelineLost, pack
from gateway.index.redis_tree.service import RadixService
from gateway.redis.client import open_client
from gateway.redis.master_lookup import Locator, MasterUnknown
from gateway.redis.options import HostPort
from tests.support.patience import stays, until
from tests.support.redis_servers import Server, redis_server, server, serving
from tests.support.shared_tree import PATIENCE_S, ROOT, A, C, path_hashes, running_service, stored

__all__ = ["redis_server", "server"]

PATH = [7] * 40


async def test_blocks_of_one_gateway_are_found_by_another(server: Server) -> None:
    async with running_service(server, A) as ours, running_service(server, C) as theirs:
        assert await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}  # before the service is open
        assert ours.failed_lookups["away"] == 1
        ours.index.apply(A, stored(PATH, 0))  # before the service is open
        theirs.index.apply(C, stored(PATH[:9], 0))

        async def is_published() -> bool:
            overlaps = [dict(await each.remote_overlap(ROOT, path_hashes(PATH))) for each in (ours, theirs)]
            return overlaps == [{C: 9}, {A: 40}]

        await until(is_published)
        theirs.index.drop_worker(C)

        async def is_gone() -> bool:
            return await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}

        await until(is_gone)
        assert repr(ours).startswith("RadixService(open=True, RadixIndex(")


async def test_watchers_learn_that_redis_is_lost(server: Server) -> None:
    """Watchers learn it even where the last read of the leaders succeeded after other calls had timed out."""
    states: list[StreamState | None] = []
    async with running_service(server, C), running_service(server, A) as ours:
        ours.watch(ROOT, C, "m", states.append)

        async def is_exact() -> bool:
            return states[-1:] == [StreamState.EXACT]

        await until(is_exact)
        ours._close_pipelines()

        async def is_lost() -> bool:
            return None in states

        await until(is_lost)
        await until(is_exact)


async def test_slow_server_delays_one_lookup_until_its_deadline(server: Server) -> None:
    async with running_service(server, A, prefix="slow") as ours:

        async def is_open() -> bool:
            return ours.is_open

        await until(is_open)
        ours._lookup_s = 0.1
        with server.paused():
            for _ in range(3):  # lookups after the first one do not wait
                assert await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}
            assert (ours.failed_lookups["timeout"], ours.failed_lookups["away"]) == (1, 2)
        ours._lookup_s = PATIENCE_S
        ours.index.publication.withdraw(A)

        async def is_answered() -> bool:
            await ours.remote_overlap(ROOT, path_hashes(PATH))
            return ours.num_lookups == sum(ours.failed_lookups.values()) + 1

        await until(is_answered)
        ours._stuck_at = ours._pipelines.asks.num_answered  # as if the answer came right after the deadline
        assert await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}
        assert ours.num_lookups == sum(ours.failed_lookups.values()) + 2


async def test_blocks_are_published_again_at_a_server_restarted_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as first:
        async with running_service(first, A) as ours, running_service(first, C) as theirs:

            async def is_published() -> bool:
                return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {A: 40}

            ours.index.apply(A, stored(PATH[:30], 0))
            await until(lambda: asyncio.sleep(0, ours.is_open and theirs.is_open))
            first.kill()
            await until(lambda: asyncio.sleep(0, not ours.is_open and not theirs.is_open))
            ours.index.apply(A, stored(PATH, 30))
            assert await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}
            assert [writer.num_queued for writer in ours.index.publication.writers.values()] == [0]
            first.start()
            await until(is_published)
            assert ours.num_lost == theirs.num_lost == 1
    assert caplog.text.count("index in Redis unavailable") == 2


@pytest.mark.parametrize(
    "value", [b"", b"\1\0\0\0\0\0", b"\50\0\1\0\0\0", b"\1\0\1\0\0\0HEAD", b"\1\0\0\0\1\0HEAD\7", None]
)
async def test_undecodable_edge_is_published_again(
    server: Server, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "KEEP_S", 0.05)
    async with running_service(server, A) as ours, running_service(server, C) as theirs:
        ours.index.apply(A, stored(PATH, 0))

        async def is_published() -> bool:
            return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {A: 40}

        await until(is_published)
        head = path_hashes(PATH)[0].to_bytes(8, "little")
        key = f"s:{{{ROOT:016x}}}:e".encode() + head
        server.ask("DEL", key)
        if value is None:
            server.ask("LPUSH", key, "x")
        else:
            server.ask("SET", key, value.replace(b"HEAD", head))
        assert await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {}
        await until(is_published)
        assert theirs.num_broken >= 1
        assert theirs.failed_lookups["error"] == ours.num_lost == theirs.num_lost == 0


class ScriptedLocator(Locator):
    """A locator that finds the server `now`, or fails while `is_mute`."""

    def __init__(self, server: Server) -> None:
        self.now, self.is_mute, self.num_unreachable = server, False, 0

    async def __call__(self) -> HostPort:
        if self.is_mute:
            raise MasterUnknown("no Sentinel answers")
        return "127.0.0.1", self.now.port

    def report_unreachable(self) -> None:
        self.num_unreachable += 1

    async def _ask(self, place: HostPort) -> HostPort:
        return place


async def test_service_follows_the_master_of_several_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former master is still up, and does not know of the failover yet."""
    monkeypatch.setattr(service, "KEEP_S", 0.05)
    monkeypatch.setattr(service, "RETRY_S", 0.01)
    with serving() as first, serving() as second:
        scripted = ScriptedLocator(first)
        monkeypatch.setattr(service, "locator", lambda options: scripted)
        url = f"redis://127.0.0.1:{first.port}"
        options = {"redis": url}
        async with (
            running_service(first, A, **options) as ours,
            running_service(first, C, **options) as theirs,
        ):
            ours.index.apply(A, stored(PATH, 0))

            async def is_published() -> bool:
                return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {A: 40}

            await until(is_published)
            scripted.is_mute = True
            await stays(lambda: ours.num_lost == theirs.num_lost == 0, 0.2, "a mute Sentinel loses nothing")
            scripted.is_mute, scripted.now = False, second
            await until(lambda: asyncio.sleep(0, ours.num_lost and theirs.num_lost))
            await until(is_published)
            assert second.ask("EXISTS", f"s:{{{ROOT:016x}}}:o") == 1
            assert scripted.num_unreachable == 0
            second.kill()
            await until(lambda: asyncio.sleep(0, scripted.num_unreachable > 0))
            scripted.now = first
            await until(is_published)


async def test_service_connected_to_a_replica_is_not_open() -> None:
    quick = ("--repl-diskless-sync-delay", "0")
    with serving(*quick) as master, serving("--replicaof", f"127.0.0.1 {master.port}") as replica:
        master.ask("SET", "s:schema", "kvgate:1")
        await until(lambda: asyncio.to_thread(lambda: "s:schema" in replica.names()))
        async with running_service(replica, A) as ours:
            with pytest.raises(PipelineLost, match="READONLY"):
                await ours._open()
            assert not ours.is_open
            replica.ask("REPLICAOF", "NO", "ONE")
            await until(lambda: asyncio.sleep(0, ours.is_open))


@pytest.mark.parametrize("cause", ["closed", "silent"])
async def test_lost_lookup_connection_is_replaced(server: Server, cause: str) -> None:
    async with running_service(server, A) as ours, running_service(server, C) as theirs:
        ours.index.apply(A, stored(PATH, 0))

        async def is_published() -> bool:
            return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {A: 40}

        await until(is_published)
        pipeline = theirs._pipelines.asks
        if cause == "closed":
            server.ask("CLIENT", "KILL", "ID", await pipeline.ask(pack(b"CLIENT", b"ID")))
        else:  # an answer that is missing
            theirs._stuck_at = pipeline.num_answered
            pipeline._waiting.append(asyncio.get_running_loop().create_future())
        await until(lambda: asyncio.sleep(0, theirs.num_lost == 1))
        await until(is_published)
        assert theirs._pipelines.asks is not pipeline


async def test_error_of_the_server_is_counted(server: Server) -> None:
    async with running_service(server, A) as ours:
        ours.index.apply(A, stored(PATH, 0))
        await until(lambda: asyncio.sleep(0, ours.is_open and not ours.index.publication.num_queued))
        server.ask("DEL", f"s:{{{ROOT:016x}}}:s")
        server.ask("SET", f"s:{{{ROOT:016x}}}:s", "x")
        assert await ours.remote_overlap(ROOT, path_hashes(PATH)) == {}
        assert ours.failed_lookups["error"] + ours.failed_lookups["away"] == 1


async def test_full_server_answers_lookups_and_gets_the_blocks_when_it_has_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks that were published before may be outdated, so the tree no longer lists them."""
    monkeypatch.setattr(service, "FULL_S", 0.05)
    with serving() as server:
        async with running_service(server, A) as ours, running_service(server, C) as theirs:
            theirs.index.apply(C, stored(PATH[:9], 0))
            ours.index.apply(A, stored(PATH, 0))

            async def is_readable() -> bool:
                return await ours.remote_overlap(ROOT, path_hashes(PATH)) == {C: 9}

            async def is_published() -> bool:
                return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {A: 40}

            async def is_withdrawn() -> bool:
                return await theirs.remote_overlap(ROOT, path_hashes(PATH)) == {}

            await until(is_readable)
            await until(is_published)
            server.ask("CONFIG", "SET", "maxmemory", "1")
            ours.index.apply(A, stored([8] * 3, 0))
            await until(is_withdrawn)
            assert await is_readable() and ours.is_open
            server.ask("CONFIG", "SET", "maxmemory", "0")
            await until(is_published)
            assert ours.num_lost == 0
    assert caplog.text.count("redis is out of memory") == 1


async def test_documented_acl_rights_are_enough(server: Server) -> None:
    """The documented ACL rights suffice for lookups, publishing and the commands of `kvgate index`."""
    rights = ("~kvgate:*", "+@all", "-@dangerous", "+info")
    server.ask("ACL", "SETUSER", "kvgate", "on", ">secret", *rights)
    url = f"unix://kvgate:secret@{server.socket}"
    options = server.options(redis=url, redis_timeout_s=PATIENCE_S)
    ours, client = RadixService(options, lookup_s=PATIENCE_S), open_client(options)
    ours.index.add_worker(A, ROOT, 1)
    ours.index.publication.publish(A, 1, StreamState.EXACT)
    ours.index.apply(A, stored(PATH, 0))
    task = asyncio.get_running_loop().create_task(ours.run())
    try:
        survey = Survey(client, options)

        async def is_published() -> bool:
            return [len(row.blocks or ()) for row in await survey.rows()] == [40]

        await until(is_published)
        assert await survey.drop_all() > 5
        assert ours.num_lost == 0
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.aclose()
        server.ask("ACL", "DELUSER", "kvgate")
