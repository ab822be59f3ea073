import pytest
from redis.asyncio import Redis

from gateway.core.event_stream import StreamState
from gateway.index.redis_tree.browse import Browser, edge_of
from gateway.redis.client import RedisClient
from tests.support.redis_index import Radix, radix
from tests.support.redis_servers import redis_server
from tests.support.shared_tree import ROOT, A, B, C, pair, path_hashes, removed, stored

__all__ = ["radix", "redis_server"]


def test_browser_reads_the_tree_as_its_scripts_wrote_it(radix: Radix) -> None:
    ours, theirs = pair(radix)
    path, branch = [7] * 300, [7] * 30 + [8] * 5
    ours.apply(A, stored(path, 0))
    ours.apply(B, stored(branch, 0))
    ours.apply(A, removed(path, [35, 3]))
    theirs.apply(C, stored(path[:10], 0))
    ours.publication.publish(B, 1, StreamState.BLIND)
    for index in (ours, theirs):
        radix.run(index.publication.flush())

    async def browse() -> None:
        client: Redis = RedisClient(unix_socket_path=str(radix.server.socket), protocol=2)
        browser = Browser(client, ours.prefix, ROOT)
        owners = await browser.workers()
        assert {name: (worker.fence, worker.state) for name, worker in owners.items()} == {
            A: (1, StreamState.EXACT),
            B: (1, StreamState.BLIND),
            C: (1, StreamState.EXACT),
        }
        for index, worker in ((ours, A), (ours, B), (theirs, C)):
            slots = owners[worker].slots
            assert await browser.visible(slots) == list(slots)
            assert await browser.blocks(slots) == set(index.own.blocks(worker))
        edges = [edge async for edge in browser.edges(owners[A].slots[0])]
        assert sorted(len(edge.blocks) for edge in edges) == [44, 256]
        (head,) = [edge for edge in edges if edge.head == path_hashes(path)[0]]
        assert (len(head.held), head.num_bytes > 256 * 8) == (3, True)
        assert repr(browser).startswith("Browser(t")
        await client.aclose()

    radix.run(browse())


@pytest.mark.parametrize("value", [b"", b"\x02\0\0\0\0\0" + b"x" * 15, b"\0\0\1\0\1\0\7\0\3"])
def test_value_that_is_no_edge_raises_value_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="edge 0700000000000000 does not decode"):
        edge_of((7).to_bytes(8, "little"), value)
