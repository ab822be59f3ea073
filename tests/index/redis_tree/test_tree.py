import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksCleared, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.pipeline import PipelineRejected
from gateway.index.redis_tree.tree import Owner, RadixTree, SlotsLost
from gateway.index.reference import ReferenceIndex
from tests.support.redis_index import Radix, TreeIndex, radix
from tests.support.redis_servers import Server, redis_server
from tests.support.shared_tree import ROOT, A, B, C, pair, path_hashes, removed, stored

__all__ = ["radix", "redis_server"]


def edges(radix: Radix, prefix: str) -> dict[bytes, bytes]:
    """Edges in the server: first block ─► value."""
    with radix.server.direct() as client:
        keys = sorted(client.scan_iter(f"{prefix}:*:e*"))
        return {key[-8:]: client.get(key) for key in keys}  # type: ignore[misc]


def sizes(radix: Radix, prefix: str) -> list[int]:
    return sorted(struct.unpack_from("<H", value)[0] for value in edges(radix, prefix).values())


@st.composite
def paths(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Paths that branch off from each other anywhere, some of them longer than an edge."""
    found = [tuple([0] * draw(st.sampled_from([3, 20, 300])))]
    for number in range(1, draw(st.integers(2, 5))):
        stem = draw(st.sampled_from(found))
        kept = draw(st.integers(0, len(stem)))
        found.append((*stem[:kept], *([number] * draw(st.sampled_from([1, 2, 10, 300])))))
    return found


class TestTree:
    @pytest.mark.slow
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_tree_equals_the_reference_index(self, radix: Radix, data: st.DataObject) -> None:
        """Random stores, removals, clears, resets and drops, written now and then by two gateways."""
        plain, (ours, theirs) = ReferenceIndex(), pair(radix)
        for worker in (A, B, C):
            plain.add_worker(worker, ROOT, 1)
        all_paths, cached = data.draw(paths()), {worker: set[BlockHash]() for worker in (A, B, C)}
        for _ in range(data.draw(st.integers(1, 25))):
            worker = data.draw(st.sampled_from([A, B, C]))
            index, path = theirs if worker == C else ours, data.draw(st.sampled_from(all_paths))
            names, known = path_hashes(path), cached[worker]
            action = data.draw(
                st.sampled_from(["store"] * 4 + ["remove"] * 3 + ["clear", "reset", "drop", "flush"])
            )
            if action == "store":
                first = data.draw(st.integers(0, len(path) - 1))
                while first and names[first - 1] not in known:
                    first -= 1
                new = [i for i in range(first, len(path)) if names[i] not in known]
                end = data.draw(st.integers(first + 1, len(path)))
                for i in [i for i in new if i < end]:  # no copies
                    known.add(names[i])
                for event in runs_of(path, [i for i in new if i < end]):
                    index.apply(worker, event)
                    plain.apply(worker, event)
            elif action == "remove" and known & set(names):
                there = [i for i in range(len(path)) if names[i] in known]
                gone = data.draw(st.sampled_from([there[-1:], there[-3:], there[:1], there[::2], there]))
                known -= {names[i] for i in gone}
                for each in (index, plain):
                    each.apply(worker, removed(path, gone))
            elif action == "clear":
                known.clear()
                for each in (index, plain):
                    each.apply(worker, BlocksCleared())
            elif action in ("reset", "drop"):
                known.clear()
                for each in (index, plain):
                    if action == "drop":
                        each.drop_worker(worker)
                        each.add_worker(worker, ROOT, 1)
                    else:
                        each.reset_worker(worker)
            else:
                radix.run(index.publication.flush())
                radix.run(index.trees.sweep())
        most_edges = data.draw(st.sampled_from([1, 2, 256]))
        for index in (ours, theirs):
            index.most_edges = most_edges
            radix.run(index.publication.flush())
        for path in all_paths:
            asked = [*path_hashes(path), BlockHash(1)]
            assert ours.tree_overlap(asked) == theirs.tree_overlap(asked) == dict(plain.overlap(asked))
        self.assert_empty_after_dropping_all_workers(radix, ours, theirs)

    def assert_empty_after_dropping_all_workers(
        self, radix: Radix, ours: TreeIndex, theirs: TreeIndex
    ) -> None:
        for index, worker in ((ours, A), (ours, B), (theirs, C)):
            index.drop_worker(worker)
            radix.run(index.publication.flush())
        while radix.run(ours.trees.sweep()):
            pass
        with radix.server.direct() as client:
            assert sorted(key[-1:] for key in client.scan_iter(f"{ours.prefix}:*")) == [b"a", b"n", b"o"]


def runs_of(path: Sequence[int], positions: Sequence[int]) -> list[BlocksStored]:
    """Events that store the blocks at these positions, one for each stretch."""
    runs: list[list[int]] = []
    for i in positions:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [stored(path[: run[-1] + 1], run[0]) for run in runs]


def test_blocks_stored_one_by_one_are_one_edge(radix: Radix) -> None:
    ours, _ = pair(radix)
    path = [7] * 200
    for i in range(200):
        ours.apply(A, stored(path[: i + 1], i))
        if not i % 3:
            radix.run(ours.publication.flush())
    assert ours.tree_overlap(path_hashes(path)) == {A: 200}
    assert sizes(radix, ours.prefix) == [200]


def test_workers_share_an_edge_and_a_branch_has_its_own(radix: Radix) -> None:
    ours, theirs = pair(radix)
    stem, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(stem, 0))
    radix.run(ours.publication.flush())
    theirs.apply(C, stored(branch, 0))
    assert theirs.tree_overlap(path_hashes(branch)) == {A: 30, C: 35}
    assert sizes(radix, ours.prefix) == [5, 40]
    ours.apply(A, removed(stem, [39, 38]))
    ours.tree_overlap([])
    assert sizes(radix, ours.prefix) == [5, 38]


def test_run_into_a_missing_stretch_ends_where_an_edge_begins(radix: Radix) -> None:
    """Otherwise the tree would have a block twice, and a walk would miss the workers of one of the two."""
    ours, theirs = pair(radix)
    long, branch = [7] * 20, [7] * 10 + [8]
    ours.apply(A, stored(branch, 0))
    ours.tree_overlap([])
    theirs.apply(C, stored(long, 0))
    theirs.tree_overlap([])
    assert sizes(radix, ours.prefix) == [10, 11]
    ours.apply(A, removed(branch, range(5, 11)))
    ours.tree_overlap([])
    theirs.apply(C, removed(long, range(5, 10)))
    theirs.tree_overlap([])
    assert sizes(radix, ours.prefix) == [5, 10]
    ours.apply(A, stored(long, 5))
    ours.tree_overlap([])
    assert sizes(radix, ours.prefix) == [10, 10]
    theirs.apply(C, stored(long[:10], 5))
    assert theirs.tree_overlap(path_hashes(long)) == {A: 20, C: 20}


def test_walk_of_many_edges_continues_with_another_call(radix: Radix) -> None:
    ours, _ = pair(radix)
    path = [7] * 8192
    for worker, end in ((A, 8192), (B, 5000)):
        ours.apply(worker, stored(path[:end], 0))
    for ours.most_edges in (1, 7, 256):
        assert ours.tree_overlap(path_hashes(path)) == {A: 8192, B: 5000}


def test_slot_that_is_not_kept_expires_and_its_edges_are_swept(radix: Radix) -> None:
    ours, theirs = pair(radix)
    path = [7] * 40
    ours.apply(A, stored(path, 0))
    theirs.apply(C, stored(path[:10], 0))
    theirs.tree_overlap([])
    tree = RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0)
    assert ours.tree_overlap(path_hashes(path)) == {A: 40, C: 10}
    radix.run(tree.keep(ours.publication.writers[ROOT]))  # with `keep_ms=0` the slot expires at once
    assert theirs.tree_overlap(path_hashes(path)) == {C: 10}
    while radix.run(tree.sweep()):
        pass
    assert sizes(radix, ours.prefix) == [10]


def test_gateway_with_lost_slots_writes_nothing_and_raises(radix: Radix) -> None:
    """A gateway that was paused finds its slots expired and swept."""
    ours, theirs = pair(radix)
    path = [7] * 40
    ours.apply(A, stored(path[:20], 0))
    ours.tree_overlap([])
    tree, writer = RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0), ours.publication.writers[ROOT]
    radix.run(tree.keep(writer))
    while radix.run(theirs.trees.sweep()):
        pass
    ours.apply(A, stored(path, 20))
    ours.apply(A, removed(path, [0]))
    for call in (tree.write, tree.keep):
        with pytest.raises(SlotsLost, match="lost"):
            radix.run(call(writer))
    assert sizes(radix, ours.prefix) == []


@pytest.mark.parametrize("call", ["flush", "keep"])
def test_blocks_are_published_again_after_the_server_was_emptied(
    radix: Radix, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server was emptied, and another gateway wrote first: its slots may have our numbers now."""
    ours, theirs = pair(radix)
    path, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(path, 0))
    ours.apply(B, stored(branch, 0))
    ours.apply(A, removed(path, [35, 3]))
    theirs.apply(C, stored(path[:10], 0))
    assert theirs.tree_overlap(path_hashes(path)) == {C: 10}
    assert ours.tree_overlap(path_hashes(path)) == {A: 3, B: 30, C: 10}
    radix.server.ask("FLUSHALL")
    assert ours.tree_overlap(path_hashes(path)) == {}
    theirs.apply(C, stored(path[:12], 10))
    assert theirs.tree_overlap(path_hashes(path)) == {C: 12}
    ours.apply(A, removed(path, [39]))
    radix.run(getattr(ours.publication, call)())
    for index in (ours, theirs):
        assert index.tree_overlap(path_hashes(path)) == {A: 3, B: 30, C: 12}
        assert index.tree_overlap(path_hashes(branch)) == {A: 3, B: 35, C: 12}
    ours.apply(A, stored(path[:4], 3))
    assert ours.tree_overlap(path_hashes(path)) == {A: 35, B: 30, C: 12}
    assert "publishing the blocks of our workers again" in caplog.text


def test_server_with_an_earlier_tree_gets_the_present_blocks(
    radix: Radix, caplog: pytest.LogCaptureFixture
) -> None:
    """A lagging replica took over: its slots have other numbers, and ours may be another gateway's."""
    ours, theirs = pair(radix)
    path, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(path, 0))
    ours.apply(B, stored(branch, 0))
    theirs.apply(C, stored(path[:10], 0))
    assert ours.tree_overlap(path_hashes(path)) == {A: 40, B: 30}
    assert theirs.tree_overlap(path_hashes(path)) == {A: 40, B: 30, C: 10}
    earlier = dump(radix, ours.prefix)
    for index in (ours, theirs):
        index.publication.republish(ROOT)
    ours.apply(A, removed(path, [39]))
    theirs.apply(C, stored(path[:12], 10))
    for index in (ours, theirs):
        index.tree_overlap([])
    restore(radix, ours.prefix, earlier)
    ours.drop_worker(B)  # before the takeover is noticed
    caplog.clear()
    for index in (theirs, ours):
        index.publication.pause()
        index.publication.resume()
        radix.run(index.publication.flush())
    for index in (theirs, ours):
        radix.run(index.publication.keep())
        assert index.tree_overlap(path_hashes(path)) == {A: 39, C: 12}
        assert index.tree_overlap(path_hashes(branch)) == {A: 30, C: 12}
    assert "publishing the blocks" not in caplog.text


def dump(radix: Radix, prefix: str) -> dict[bytes, bytes]:
    with radix.server.direct() as client:
        return {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*")}  # type: ignore[misc]


def restore(radix: Radix, prefix: str, dumped: dict[bytes, bytes]) -> None:
    with radix.server.direct() as client:
        client.delete(*client.scan_iter(f"{prefix}:*"))
        for key, value in dumped.items():
            client.restore(key, 0, value)


def test_rejected_gateway_writes_when_the_newer_fence_expires(radix: Radix) -> None:
    """The newer fence belongs to a lease that this server never had, and its slots are not kept."""
    ours, path = radix.index(), [7] * 40
    ours.add_worker(A, ROOT, 1)
    other = TreeIndex(radix, ours.prefix)
    other.fence = 2
    other.add_worker(A, ROOT, 1)
    other.apply(A, stored(path[:9], 0))
    other.tree_overlap([])
    ours.apply(A, stored(path, 0))
    assert ours.tree_overlap(path_hashes(path)) == {A: 9}
    radix.run(ours.publication.keep())
    assert ours.tree_overlap(path_hashes(path)) == {A: 9}
    radix.run(RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0).keep(other.publication.writers[ROOT]))
    radix.run(ours.publication.keep())
    assert ours.tree_overlap(path_hashes(path)) == {A: 40}


def test_scripts_are_loaded_again_after_the_server_flushed_them(radix: Radix) -> None:
    ours, _ = pair(radix)
    radix.server.ask("SCRIPT", "FLUSH")
    ours.apply(A, stored([7] * 4, 0))
    assert ours.tree_overlap(path_hashes([7] * 4)) == {A: 4}


def test_error_of_the_server_is_raised(radix: Radix) -> None:
    ours, _ = pair(radix)
    ours.tree_overlap([])
    radix.server.ask("SET", f"{ours.prefix}:{{{ROOT:016x}}}:s", "no hash")
    try:
        radix.run(ours.publication.keep())
    except PipelineRejected as exc:
        assert "WRONGTYPE" in str(exc)
    else:
        raise AssertionError("the write was accepted")


def test_lookup_is_read_only(radix: Radix, redis_server: Server) -> None:
    """Lookups may go to a replica, and add nothing to an append-only file."""
    ours, _ = pair(radix)
    ours.apply(A, stored([7] * 4, 0))
    ours.tree_overlap([])
    redis_server.ask("CONFIG", "RESETSTAT")
    assert (
        radix.run(ours.remote_overlap(ROOT, path_hashes([7] * 4))) == {}
    )  # a gateway's own workers are not looked up
    with redis_server.direct() as client:
        assert set(client.info("commandstats")) >= {"cmdstat_evalsha_ro", "cmdstat_get"}  # type: ignore[arg-type]
        assert not {"cmdstat_evalsha", "cmdstat_keys", "cmdstat_scan"} & set(client.info("commandstats"))  # type: ignore[arg-type]


def test_newer_fence_replaces_the_blocks_of_an_older_one(radix: Radix) -> None:
    """The gateway with the older fence was only paused; it writes nothing, however often it tries."""
    paused, path = radix.index(), [7] * 40
    paused.add_worker(A, ROOT, 1)
    paused.apply(A, stored(path, 0))
    assert paused.tree_overlap(path_hashes(path)) == {A: 40}
    successor = TreeIndex(radix, paused.prefix)
    successor.fence = 2
    successor.add_worker(A, ROOT, 1)
    successor.apply(A, stored(path[:9], 0))
    assert successor.tree_overlap(path_hashes(path)) == {A: 9}
    paused.apply(A, stored([8] * 3, 0))
    for _ in range(2):
        assert paused.tree_overlap(path_hashes(path)) == {A: 9}
        assert paused.tree_overlap(path_hashes([8] * 3)) == {}
    paused.fence = 3
    paused.publication.publish(A, 3, StreamState.EXACT)  # it leads again
    assert paused.tree_overlap(path_hashes(path)) == {A: 40}
    assert successor.tree_overlap(path_hashes(path)) == {A: 40}


def test_owners_lists_fence_and_stream_state_of_each_worker(radix: Radix) -> None:
    ours, theirs = pair(radix)
    ours.publication.publish(B, 1, StreamState.BLIND)
    for index in (ours, theirs):
        radix.run(index.publication.flush())
    tree = theirs.trees.of(ROOT)
    assert radix.run(tree.owners()) == {
        A: Owner(1, StreamState.EXACT),
        B: Owner(1, StreamState.BLIND),
        C: Owner(1, StreamState.EXACT),
    }
    radix.run(tree.publish_state(A, 0, StreamState.BLIND))  # under an outdated fence
    ours.publication.withdraw(B)
    radix.run(ours.publication.flush())
    assert radix.run(tree.owners()) == {
        A: Owner(1, StreamState.EXACT),
        C: Owner(1, StreamState.EXACT),
    }


def test_unpublished_worker_is_known_to_its_own_gateway_only(radix: Radix) -> None:
    ours, path = radix.index(), [7] * 40
    ours.add_worker(A, ROOT, 1)
    ours.publication.withdraw(A)
    ours.apply(A, stored(path, 0))
    ours.apply(A, removed(path, [39]))
    assert ours.tree_overlap(path_hashes(path)) == {}
    assert dict(ours.own.overlap(path_hashes(path))) == {A: 39}
    ours.publication.publish(A, 4, StreamState.CATCHING_UP)
    assert ours.tree_overlap(path_hashes(path)) == {A: 39}
    ours.publication.publish(A, 4, StreamState.EXACT)  # nothing is written twice
    assert ours.publication.writers[ROOT].num_queued == 0
    ours.add_worker(A, ROOT, 1)
    assert ours.tree_overlap(path_hashes(path)) == {}


def test_owners_written_by_another_version_are_readable(radix: Radix) -> None:
    theirs = radix.index()
    tree = theirs.trees.of(ROOT)
    till = struct.pack("<dd", 1.0, 1e15)
    slot = b"\x01\x00"
    radix.server.ask("HSET", tree.key + b"o", b"\xff", till + b"\xc8" + slot, b"b:1", till + b"\x01" + slot)
    assert radix.run(tree.owners()) == {
        WorkerId("\ufffd"): Owner(1, StreamState.CATCHING_UP),
        B: Owner(1, StreamState.EXACT),
    }
