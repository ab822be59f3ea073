import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.blocks import BlockHash, hash_blocks, root_hash, tokens_of
from gateway.core.event_stream import StreamState
from gateway.core.kv_events import BlocksCleared, BlocksRemoved, BlocksStored
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.pipeline import PipelineRejected
from gateway.index.redis_tree.tree import Owner, RadixTree, SlotsLost
from gateway.index.reference import ReferenceIndex
from tests.index.redis_tree.through import Radix, Through, radix, redis_server
from tests.redis.serving import Server

__all__ = ["radix", "redis_server"]

A, B, C = (WorkerId(f"{name}:1") for name in "abc")
ROOT = root_hash("m")


def path_hashes(path: Sequence[int]) -> list[BlockHash]:
    return hash_blocks(tokens_of(path), 1, ROOT)


def stored(path: Sequence[int], first: int) -> BlocksStored:
    """The blocks of a path from one on, each named by itself."""
    names = path_hashes(path)
    return BlocksStored(names[first:], names[first - 1] if first else None, tokens_of(path[first:]), 1)


def removed(path: Sequence[int], positions: Sequence[int]) -> BlocksRemoved:
    names = path_hashes(path)
    return BlocksRemoved([names[i] for i in positions])


def edges(radix: Radix, prefix: str) -> dict[bytes, bytes]:
    """First block ─► value."""
    with radix.server.direct() as client:
        keys = sorted(client.scan_iter(f"{prefix}:*:e*"))
        return {key[-8:]: client.get(key) for key in keys}  # type: ignore[misc]


def sizes(radix: Radix, prefix: str) -> list[int]:
    return sorted(struct.unpack_from("<H", value)[0] for value in edges(radix, prefix).values())


def pair(radix: Radix) -> tuple[Through, Through]:
    """Two gateways of one tree: A and B are the first's, C is the second's."""
    ours = radix.index()
    theirs = Through(radix, ours.prefix)
    for index, workers in ((ours, (A, B)), (theirs, (C,))):
        for worker in workers:
            index.add_worker(worker, ROOT, 1)
    return ours, theirs


@st.composite
def paths(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Some that part from each other anywhere, over the length of an edge too."""
    found = [tuple([0] * draw(st.sampled_from([3, 20, 300])))]
    for number in range(1, draw(st.integers(2, 5))):
        stem = draw(st.sampled_from(found))
        kept = draw(st.integers(0, len(stem)))
        found.append((*stem[:kept], *([number] * draw(st.sampled_from([1, 2, 10, 300])))))
    return found


class TestEqualToTheOracle:
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_equal_to_plain_dicts(self, radix: Radix, data: st.DataObject) -> None:
        """Stores, removals anywhere, clears, resets and drops, written now and then by two gateways."""
        plain, (ours, theirs) = ReferenceIndex(), pair(radix)
        for worker in (A, B, C):
            plain.add_worker(worker, ROOT, 1)
        all_paths, held = data.draw(paths()), {worker: set[BlockHash]() for worker in (A, B, C)}
        for _ in range(data.draw(st.integers(1, 25))):
            worker = data.draw(st.sampled_from([A, B, C]))
            index, path = theirs if worker == C else ours, data.draw(st.sampled_from(all_paths))
            names, known = path_hashes(path), held[worker]
            action = data.draw(
                st.sampled_from(["store"] * 4 + ["remove"] * 3 + ["clear", "reset", "drop", "flush"])
            )
            if action == "store":
                first = data.draw(st.integers(0, len(path) - 1))
                while first and names[first - 1] not in known:
                    first -= 1
                new = [i for i in range(first, len(path)) if names[i] not in known]
                end = data.draw(st.integers(first + 1, len(path)))
                for i in [
                    i for i in new if i < end
                ]:  # no copies: one by one, as decoding tells them, or in runs
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
                radix.run(index.flush())
                radix.run(index.sweep_trees())
        most_edges = data.draw(st.sampled_from([1, 2, 256]))
        for index in (ours, theirs):
            index.most_edges = most_edges
            radix.run(index.flush())
        for path in all_paths:
            asked = [*path_hashes(path), BlockHash(1)]
            assert ours.told(asked) == theirs.told(asked) == dict(plain.overlap(asked))
        self.nothing_is_left_when_all_is_dropped(radix, ours, theirs)

    def nothing_is_left_when_all_is_dropped(self, radix: Radix, ours: Through, theirs: Through) -> None:
        for index, worker in ((ours, A), (ours, B), (theirs, C)):
            index.drop_worker(worker)
            radix.run(index.flush())
        while radix.run(ours.sweep_trees()):
            pass
        with radix.server.direct() as client:
            assert sorted(key[-1:] for key in client.scan_iter(f"{ours.prefix}:*")) == [b"a", b"n", b"o"]


def runs_of(path: Sequence[int], positions: Sequence[int]) -> list[BlocksStored]:
    """Events that store these: stretches whole."""
    runs: list[list[int]] = []
    for i in positions:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [stored(path[: run[-1] + 1], run[0]) for run in runs]


def test_blocks_that_come_one_by_one_are_one_edge(radix: Radix) -> None:
    ours, _ = pair(radix)
    path = [7] * 200
    for i in range(200):
        ours.apply(A, stored(path[: i + 1], i))
        if not i % 3:
            radix.run(ours.flush())
    assert ours.told(path_hashes(path)) == {A: 200}
    assert sizes(radix, ours.prefix) == [200]


def test_two_workers_share_an_edge_and_a_branch_is_one_of_its_own(radix: Radix) -> None:
    ours, theirs = pair(radix)
    stem, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(stem, 0))
    radix.run(ours.flush())
    theirs.apply(C, stored(branch, 0))
    assert theirs.told(path_hashes(branch)) == {A: 30, C: 35}
    assert sizes(radix, ours.prefix) == [5, 40]
    ours.apply(A, removed(stem, [39, 38]))
    ours.told([])
    assert sizes(radix, ours.prefix) == [5, 38]


def test_what_fills_a_hole_ends_where_an_edge_begins(radix: Radix) -> None:
    """Else a block would lie in the tree twice, and a walk would miss who holds the other one."""
    ours, theirs = pair(radix)
    long, branch = [7] * 20, [7] * 10 + [8]
    ours.apply(A, stored(branch, 0))
    ours.told([])
    theirs.apply(C, stored(long, 0))
    theirs.told([])
    assert sizes(radix, ours.prefix) == [10, 11]
    ours.apply(A, removed(branch, range(5, 11)))
    ours.told([])
    theirs.apply(C, removed(long, range(5, 10)))
    theirs.told([])
    assert sizes(radix, ours.prefix) == [5, 10]
    ours.apply(A, stored(long, 5))
    ours.told([])
    assert sizes(radix, ours.prefix) == [10, 10]
    theirs.apply(C, stored(long[:10], 5))
    assert theirs.told(path_hashes(long)) == {A: 20, C: 20}


def test_a_walk_of_many_edges_goes_on_with_another_call(radix: Radix) -> None:
    ours, _ = pair(radix)
    path = [7] * 8192
    for worker, end in ((A, 8192), (B, 5000)):
        ours.apply(worker, stored(path[:end], 0))
    for ours.most_edges in (1, 7, 256):
        assert ours.told(path_hashes(path)) == {A: 8192, B: 5000}


def test_a_slot_that_nobody_keeps_expires_and_its_edges_are_swept(radix: Radix) -> None:
    ours, theirs = pair(radix)
    path = [7] * 40
    ours.apply(A, stored(path, 0))
    theirs.apply(C, stored(path[:10], 0))
    theirs.told([])
    tree = RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0)
    assert ours.told(path_hashes(path)) == {A: 40, C: 10}
    radix.run(tree.keep(ours.writers[ROOT]))  # for no time at all
    assert theirs.told(path_hashes(path)) == {C: 10}
    while radix.run(tree.sweep()):
        pass
    assert sizes(radix, ours.prefix) == [10]


def test_who_has_lost_its_slot_writes_nothing_and_is_told(radix: Radix) -> None:
    """A gateway that was paused."""
    ours, theirs = pair(radix)
    path = [7] * 40
    ours.apply(A, stored(path[:20], 0))
    ours.told([])
    tree, writer = RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0), ours.writers[ROOT]
    radix.run(tree.keep(writer))
    while radix.run(theirs.sweep_trees()):
        pass
    ours.apply(A, stored(path, 20))
    ours.apply(A, removed(path, [0]))
    for call in (tree.write, tree.keep):
        with pytest.raises(SlotsLost, match="lost"):
            radix.run(call(writer))
    assert sizes(radix, ours.prefix) == []


@pytest.mark.parametrize("call", ["flush", "keep"])
def test_what_was_forgotten_is_told_again(radix: Radix, call: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server was emptied, and others were there before us: our numbers may be theirs now."""
    ours, theirs = pair(radix)
    path, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(path, 0))
    ours.apply(B, stored(branch, 0))
    ours.apply(A, removed(path, [35, 3]))
    theirs.apply(C, stored(path[:10], 0))
    assert theirs.told(path_hashes(path)) == {C: 10}
    assert ours.told(path_hashes(path)) == {A: 3, B: 30, C: 10}
    radix.server.ask("FLUSHALL")
    assert ours.told(path_hashes(path)) == {}
    theirs.apply(C, stored(path[:12], 10))
    assert theirs.told(path_hashes(path)) == {C: 12}
    ours.apply(A, removed(path, [39]))
    radix.run(getattr(ours, call)())
    for told in (ours, theirs):
        assert told.told(path_hashes(path)) == {A: 3, B: 30, C: 12}
        assert told.told(path_hashes(branch)) == {A: 3, B: 35, C: 12}
    ours.apply(A, stored(path[:4], 3))
    assert ours.told(path_hashes(path)) == {A: 35, B: 30, C: 12}
    assert "publishing the blocks of our workers again" in caplog.text


def test_a_server_that_knows_an_earlier_tree_is_told_what_is_now(
    radix: Radix, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that lagged took over: slots have other numbers there, and ours may be others'."""
    ours, theirs = pair(radix)
    path, branch = [7] * 40, [7] * 30 + [8] * 5
    ours.apply(A, stored(path, 0))
    ours.apply(B, stored(branch, 0))
    theirs.apply(C, stored(path[:10], 0))
    assert ours.told(path_hashes(path)) == {A: 40, B: 30}
    assert theirs.told(path_hashes(path)) == {A: 40, B: 30, C: 10}
    earlier = dump(radix, ours.prefix)
    for index in (ours, theirs):
        index.republish(ROOT)
    ours.apply(A, removed(path, [39]))
    theirs.apply(C, stored(path[:12], 10))
    for index in (ours, theirs):
        index.told([])
    restore(radix, ours.prefix, earlier)
    ours.drop_worker(B)  # before it was noticed
    caplog.clear()
    for index in (theirs, ours):
        index.pause()
        index.resume()
        radix.run(index.flush())
    for index in (theirs, ours):
        radix.run(index.keep())
        assert index.told(path_hashes(path)) == {A: 39, C: 12}
        assert index.told(path_hashes(branch)) == {A: 30, C: 12}
    assert "publishing the blocks" not in caplog.text


def dump(radix: Radix, prefix: str) -> dict[bytes, bytes]:
    with radix.server.direct() as client:
        return {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*")}  # type: ignore[misc]


def restore(radix: Radix, prefix: str, dumped: dict[bytes, bytes]) -> None:
    with radix.server.direct() as client:
        client.delete(*client.scan_iter(f"{prefix}:*"))
        for key, value in dumped.items():
            client.restore(key, 0, value)


def test_who_was_refused_tries_again_as_long_as_its_lease_says_so(radix: Radix) -> None:
    """The newer fence was of a lease that the server never heard of, and nobody keeps its slots."""
    ours, path = radix.index(), [7] * 40
    ours.add_worker(A, ROOT, 1)
    other = Through(radix, ours.prefix)
    other.fence = 2
    other.add_worker(A, ROOT, 1)
    other.apply(A, stored(path[:9], 0))
    other.told([])
    ours.apply(A, stored(path, 0))
    assert ours.told(path_hashes(path)) == {A: 9}
    radix.run(ours.keep())
    assert ours.told(path_hashes(path)) == {A: 9}
    radix.run(RadixTree(radix.pipelines, ours.prefix, ROOT, keep_ms=0).keep(other.writers[ROOT]))
    radix.run(ours.keep())
    assert ours.told(path_hashes(path)) == {A: 40}


def test_a_server_that_has_forgotten_the_scripts_is_given_them_again(radix: Radix) -> None:
    ours, _ = pair(radix)
    radix.server.ask("SCRIPT", "FLUSH")
    ours.apply(A, stored([7] * 4, 0))
    assert ours.told(path_hashes([7] * 4)) == {A: 4}


def test_what_the_server_refuses_is_told(radix: Radix) -> None:
    ours, _ = pair(radix)
    ours.told([])
    radix.server.ask("SET", f"{ours.prefix}:{{{ROOT:016x}}}:s", "no hash")
    try:
        radix.run(ours.keep())
    except PipelineRejected as exc:
        assert "WRONGTYPE" in str(exc)
    else:
        raise AssertionError("it was taken")


def test_a_lookup_is_read_only(radix: Radix, redis_server: Server) -> None:
    """A replica may be asked, and it writes nothing into the log of one that keeps one."""
    ours, _ = pair(radix)
    ours.apply(A, stored([7] * 4, 0))
    ours.told([])
    redis_server.ask("CONFIG", "RESETSTAT")
    assert radix.run(ours.remote_overlap(ROOT, path_hashes([7] * 4))) == {}  # A is ours
    with redis_server.direct() as client:
        assert set(client.info("commandstats")) >= {"cmdstat_evalsha_ro", "cmdstat_get"}  # type: ignore[arg-type]
        assert not {"cmdstat_evalsha", "cmdstat_keys", "cmdstat_scan"} & set(client.info("commandstats"))  # type: ignore[arg-type]


def test_one_who_tells_under_a_newer_fence_ends_what_the_other_told(radix: Radix) -> None:
    """And the one before, who was only paused, writes nothing, however often it tries."""
    paused, path = radix.index(), [7] * 40
    paused.add_worker(A, ROOT, 1)
    paused.apply(A, stored(path, 0))
    assert paused.told(path_hashes(path)) == {A: 40}
    next_one = Through(radix, paused.prefix)
    next_one.fence = 2
    next_one.add_worker(A, ROOT, 1)
    next_one.apply(A, stored(path[:9], 0))
    assert next_one.told(path_hashes(path)) == {A: 9}
    paused.apply(A, stored([8] * 3, 0))
    for _ in range(2):
        assert paused.told(path_hashes(path)) == {A: 9}
        assert paused.told(path_hashes([8] * 3)) == {}
    paused.fence = 3
    paused.publish(A, 3, StreamState.EXACT)  # its turn again
    assert paused.told(path_hashes(path)) == {A: 40}
    assert next_one.told(path_hashes(path)) == {A: 40}


def test_who_tells_of_a_worker_and_what_its_stream_is(radix: Radix) -> None:
    ours, theirs = pair(radix)
    ours.publish(B, 1, StreamState.BLIND)
    for index in (ours, theirs):
        radix.run(index.flush())
    tree = theirs.tree(ROOT)
    assert radix.run(tree.owners()) == {
        A: Owner(1, StreamState.EXACT),
        B: Owner(1, StreamState.BLIND),
        C: Owner(1, StreamState.EXACT),
    }
    radix.run(tree.publish_state(A, 0, StreamState.BLIND))  # not its
    ours.withdraw(B)
    radix.run(ours.flush())
    assert radix.run(tree.owners()) == {
        A: Owner(1, StreamState.EXACT),
        C: Owner(1, StreamState.EXACT),
    }


def test_what_is_not_published_is_known_here_only(radix: Radix) -> None:
    ours, path = radix.index(), [7] * 40
    ours.add_worker(A, ROOT, 1)
    ours.withdraw(A)
    ours.apply(A, stored(path, 0))
    ours.apply(A, removed(path, [39]))
    assert ours.told(path_hashes(path)) == {}
    assert dict(ours.own.overlap(path_hashes(path))) == {A: 39}
    ours.publish(A, 4, StreamState.CATCHING_UP)
    assert ours.told(path_hashes(path)) == {A: 39}
    ours.publish(A, 4, StreamState.EXACT)  # nothing is told twice
    assert ours.writers[ROOT].num_queued == 0
    ours.add_worker(A, ROOT, 1)
    assert ours.told(path_hashes(path)) == {}


def test_what_others_wrote_about_workers_is_read_as_it_is(radix: Radix) -> None:
    theirs = radix.index()
    tree = theirs.tree(ROOT)
    till = struct.pack("<dd", 1.0, 1e15)
    slot = b"\x01\x00"
    radix.server.ask("HSET", tree.key + b"o", b"\xff", till + b"\xc8" + slot, b"b:1", till + b"\x01" + slot)
    assert radix.run(tree.owners()) == {
        WorkerId("\ufffd"): Owner(1, StreamState.CATCHING_UP),
        B: Owner(1, StreamState.EXACT),
    }
