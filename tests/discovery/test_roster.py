"""The life of an endpoint: waited for, joined, down, up, another process, dropped."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.core.blocks import BlockHash
from gateway.core.engine import EngineMetrics, EventSource, ModelInfo
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.discovery.endpoint import PlaceTaken
from gateway.discovery.probe import ProbeTimeout
from gateway.discovery.probed import Facts
from gateway.discovery.roster import EVENT_GRACE_S, REMIND_S
from gateway.runtime.tasks import Tasks
from tests.support.fakes import BLOCK_SIZE, payload, seq_frame
from tests.support.patience import patience
from tests.support.worlds.roster import RANK, URL, FakeProbe, RosterWorld, W


@pytest.fixture
async def world() -> AsyncIterator[RosterWorld]:
    world = RosterWorld()
    yield world
    await world.roster.stop()


# waiting and joining ---------------------------------------------------------------------------


async def test_an_endpoint_that_does_not_answer_is_waited_for(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.probe().health = "refused"
    await world.add()
    await world.look(times=3)
    assert len(world.fleet) == 0
    assert world.endpoint().facts is None
    assert world.endpoint().last_error == "refused"
    assert [r.getMessage() for r in caplog.records] == ["waiting for worker http://w:1: refused"]
    world.probe().health = "loading"
    await world.look()
    assert len(caplog.records) == 2


async def test_a_worker_that_has_not_joined_is_a_warning_that_repeats(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.probe().health = "refused"
    await world.add()
    await world.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    world.endpoint().warned_s -= REMIND_S
    await world.look()
    assert caplog.messages[1].startswith(f"waiting for worker {URL} for ")


async def test_an_endpoint_that_answers_joins(world: RosterWorld) -> None:
    world.probe().health = "loading"
    await world.add()
    world.probe().health = None
    await world.look()
    member = world.member()
    assert (member.is_up, member.worker.block_size, member.stream) == (True, 4, StreamState.CATCHING_UP)
    assert (world.endpoint().num_failures, world.endpoint().last_error) == (0, None)
    assert world.known.num_blocks("w:1") == 0
    assert [(f.endpoint, f.replay_endpoint) for f in world.feeds] == [("tcp://*:1", "tcp://*:2")]
    assert [worker for worker, _ in world.roster.stream_counts()] == ["w:1"]


async def test_an_endpoint_without_models_does_not_join(world: RosterWorld) -> None:
    world.probe().served = ()
    await world.add()
    assert len(world.fleet) == 0
    assert world.endpoint().last_error == "http://w:1 serves no model"


async def test_an_endpoint_added_twice_is_one(world: RosterWorld) -> None:
    await world.add()
    assert not world.roster.add(URL)
    assert world.probe().num_facts == 1


async def test_ranks_are_workers_with_feeds_of_their_own(world: RosterWorld) -> None:
    world.probe().ranks = {0: RANK, 1: replace(RANK, num_requests_waiting=9)}
    world.probe().sources = (EventSource(0, "tcp://*:1"), EventSource(1, "tcp://*:2"))
    await world.add()
    await world.look()
    assert [m.worker.id for m in world.fleet] == ["w:1#0", "w:1#1"]
    assert list(world.endpoint().feeds) == ["w:1#0", "w:1#1"]
    assert world.joined == [["w:1#0", "w:1#1"]]
    assert [m.reported.num_waiting for m in world.fleet] == [2, 9]


async def test_a_lora_is_served_under_the_root_of_its_parent(world: RosterWorld) -> None:
    world.probe().served = (ModelInfo("m", "root"), ModelInfo("lora", "/x", parent="m"))
    await world.add()
    assert [(s.name, s.root, s.adapter) for s in world.member().worker.served] == [
        ("m", "root", None),
        ("lora", "root", "lora"),
    ]


# events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sources", "block_size"),
    [
        ({"use_events": False}, None, BLOCK_SIZE),
        ({}, (), BLOCK_SIZE),
        ({}, None, None),
    ],
    ids=["switched off", "publishes none", "no block size"],
)
async def test_a_worker_without_events(
    options: dict[str, object], sources: tuple[EventSource, ...] | None, block_size: int | None
) -> None:
    world = RosterWorld(**options)
    world.probe().sources = sources
    world.probe().ranks = {0: EngineMetrics(block_size=block_size)}
    await world.add()
    assert world.feeds == []
    assert world.member().stream is None
    await world.roster.stop()


async def test_ranks_beyond_the_share_of_an_endpoint_are_not_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others join with events all the same."""
    world = RosterWorld(max_feeds=2)
    for url, num in ((URL, 5), ("http://w:2", 2)):
        world.probe(url).ranks = dict.fromkeys(range(num), RANK)
        world.probe(url).sources = tuple(EventSource(rank, "tcp://*:1") for rank in range(num))
        await world.add(url)
        assert list(world.endpoint(url).feeds) == [f"{url.removeprefix('http://')}#{rank}" for rank in (0, 1)]
    assert len(world.fleet) == 7
    line = "worker http://w:1: KV events of 2 of its 5 ranks are followed; the others' caches are assumed"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [line]
    await world.roster.stop()


async def test_events_without_a_reported_source_are_read_at_the_configured_ports() -> None:
    world = RosterWorld(events_port=7000, replay_port=8000)
    world.probe().sources = None
    await world.add()
    assert [(f.endpoint, f.replay_endpoint) for f in world.feeds] == [("tcp://*:7000", "tcp://*:8000")]
    await world.roster.stop()


async def test_events_that_were_read_for_another_worker_are_tried_again(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Until they can be read: the other worker may leave. Any other fault is final."""
    caplog.set_level("INFO")
    world.feed_error = PlaceTaken("read for worker w:2 already")
    await world.add()
    await world.look(times=3)
    refused = "worker w:1: no KV events (read for worker w:2 already); its cache is assumed from sent prompts"
    assert (caplog.messages.count(refused), world.feeds, world.member().stream) == (1, [], None)
    world.feed_error = None
    await world.look(times=2)
    line = "worker w:1: KV events followed now; no other worker claims their port"
    assert (caplog.messages.count(line), len(world.feeds)) == (1, 1)
    assert world.member().stream is StreamState.CATCHING_UP
    await world.roster.stop()
    other = RosterWorld()
    other.feed_error = "a bad endpoint"
    await other.add()
    other.feed_error = None
    await other.look(times=2)
    assert other.feeds == []
    await other.roster.stop()


async def test_a_publisher_that_is_reported_shows_the_block_size(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.probe().ranks = {0: EngineMetrics(num_requests_waiting=2)}
    await world.add()
    assert (len(world.feeds), world.member().worker.block_size) == (1, None)
    assert f"worker {URL}: no block size in its metrics; its KV events will show it" in caplog.messages
    world.store(1, 2)
    assert (world.member().worker.block_size, world.known.num_blocks("w:1")) == (4, 2)
    assert world.endpoint().workers[0] is world.member().worker
    world.probe().ranks = {0: replace(RANK, block_size=4)}
    await world.look(times=2)
    world.probe().ranks = {0: replace(RANK, block_size=4, num_requests_waiting=1)}
    await world.look()
    assert (world.known.num_blocks("w:1"), world.probe().num_facts) == (2, 1), "late metrics say the same"


@pytest.mark.parametrize("late", [True, False])
async def test_events_are_believed_before_metrics(
    world: RosterWorld, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stale = {0: replace(RANK, block_size=64)}
    world.probe().ranks = {0: EngineMetrics()} if late else stale
    await world.add()
    world.store(1, 2)
    world.probe().ranks = stale
    await world.look(times=3)
    assert (world.member().worker.block_size, world.known.num_blocks("w:1")) == (4, 2)
    line = "worker w:1: its KV events have blocks of 4 tokens, its metrics report 64"
    assert len([message for message in caplog.messages if message.startswith(line)]) == 1
    world.probe().ranks = {0: replace(RANK, block_size=128)}
    await world.look()
    assert world.known.num_blocks("w:1") == 0, "another process answers"


async def test_a_block_size_of_a_worker_that_left_is_ignored(world: RosterWorld) -> None:
    world.roster.block_size_shown(WorkerId("gone"), 16)
    assert len(world.fleet) == 0


async def test_an_unusable_event_source_costs_the_events_only(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.feed_error = "tcp://nonsense: Invalid argument"
    await world.add()
    assert (world.member().is_up, world.member().stream) == (True, None)
    assert "no KV events (tcp://nonsense" in caplog.text
    await world.look()
    assert world.member().is_up


async def test_assumed_blocks_stand_in_until_events_are_exact(world: RosterWorld) -> None:
    """Assumed blocks last while a publisher cannot be reached: its events may never come."""
    await world.add()
    world.sent(1, 2, 3)
    assert world.assumed_overlap(1, 2, 3, now=500.0) == 3
    world.store(1)
    assert world.assumed_overlap(1, 2, 3, now=0.0) == 0
    world.sent(1, 2, 3)
    assert world.assumed_overlap(1, 2, 3, now=EVENT_GRACE_S - 0.1) == 3
    assert world.assumed_overlap(1, 2, 3, now=EVENT_GRACE_S) == 0


async def test_the_state_of_a_stream_is_seen_in_the_fleet(world: RosterWorld) -> None:
    await world.add()
    world.store(1)
    world.subscription().disconnected()
    assert world.member().stream is StreamState.CATCHING_UP
    world.roster.stream_changed(WorkerId("gone"), StreamState.EXACT)


# health ----------------------------------------------------------------------------------------


async def test_a_worker_is_down_after_two_failed_health_probes(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.add()
    world.store(1, 2)
    world.probe().health = "answered 503"
    await world.look()
    assert world.member().is_up
    await world.look()
    assert not world.member().is_up
    assert "worker w:1 is down: answered 503" in caplog.text
    assert world.known.num_blocks("w:1") == 2  # it may well come back with all its blocks


async def test_requests_of_a_silent_worker_fail_by_the_cause(world: RosterWorld) -> None:
    """That the worker is down follows from it, and explains nothing."""
    await world.add()
    silence(world.probe())
    await world.look(times=2)
    assert world.down == [(W, LATE)]


async def test_one_failed_probe_between_two_answers_is_forgotten(world: RosterWorld) -> None:
    await world.add()
    for health in ("slow", None, "slow", None):
        world.probe().health = health
        await world.look()
        assert world.member().is_up


async def test_a_worker_that_answers_again_is_up(world: RosterWorld) -> None:
    await world.add()
    world.probe().health = "refused"
    await world.look(times=2)
    world.probe().health = None
    await world.look()
    assert world.member().is_up
    assert (world.endpoint().num_failures, world.endpoint().last_error) == (0, None)
    assert world.probe().num_facts == 1


async def test_late_metrics_do_not_take_a_worker_down(world: RosterWorld) -> None:
    await world.add()
    await world.look()
    world.probe().ranks = "did not answer in time"
    await world.look(times=3)
    member = world.member()
    assert (member.is_up, member.reported.num_waiting, member.reported.kv_usage) == (True, 2, 0.5)


async def test_assumed_blocks_are_bounded_by_the_cache_of_the_worker(world: RosterWorld) -> None:
    world.probe().ranks = {0: replace(RANK, num_gpu_blocks=50)}
    await world.add()
    assumed, blocks = world.known.assumed, list(map(BlockHash, range(80)))
    assumed.pin(WorkerId("w:1"), blocks)
    assumed.unpin(WorkerId("w:1"), blocks, 0.0, was_run=True)
    assert assumed.num_kept(WorkerId("w:1")) == 50


# late probes -----------------------------------------------------------------------------------


LATE = "/health did not answer in time"


def silence(probe: FakeProbe) -> None:
    """No page comes any more."""
    probe.is_late, probe.ranks = True, "did not answer in time"


@pytest.mark.parametrize("sign", ["answers", "events", "metrics"])
async def test_a_late_probe_takes_no_worker_down_while_other_signs_come(
    sign: str, world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.add()
    world.store(1)
    await world.look()
    silence(world.probe())
    if sign == "metrics":
        world.probe().ranks = {0: replace(RANK, num_requests_waiting=7)}
    for number in range(4):
        world.num_reads += sign == "answers"
        if sign == "events":
            world.subscription().live([b"", seq_frame(number + 1), payload(2 + number)])
        await world.look()
        assert world.member().is_up
    assert (world.member().is_late, world.endpoint().last_error) == (True, "/health did not answer in time")
    assert world.member().reported.num_waiting == (7 if sign == "metrics" else 2)
    assert (world.down, world.fleet.late.in_panic) == ([], {})
    assert caplog.text.count("it stays up") == 1
    assert world.looks[-1][0] == W  # an ejected worker may come back meanwhile
    world.probe().is_late = False
    await world.look()
    assert (world.member().is_late, world.endpoint().last_error) == (False, None)


async def test_a_silent_worker_is_down_after_two_probes_and_late_where_it_accepts(world: RosterWorld) -> None:
    await world.add()
    silence(world.probe())
    await world.look()
    assert world.member().is_up and not world.down
    await world.look()
    member = world.member()
    assert (member.is_up, member.is_late, member.is_accepting, world.down) == (False, True, True, [(W, LATE)])
    assert world.fleet.late.in_panic == {"m": {W}} and world.fleet.is_ready("m")
    await world.look()
    assert world.down == [(W, LATE)] * 2  # requests that it got meanwhile go elsewhere too
    world.num_reads += 1
    await world.look()
    assert member.is_up and world.fleet.late.in_panic == {}


@pytest.mark.parametrize(("is_accepted", "num_opened"), [(False, 0), (False, 1), (True, 0)])
async def test_accepted_connections_count_of_a_worker_without_any_other_sign(
    is_accepted: bool, num_opened: int, world: RosterWorld
) -> None:
    await world.add()
    silence(world.probe())
    world.probe().is_accepted = is_accepted
    await world.look()
    world.num_opened += num_opened
    await world.look()
    assert world.member().is_accepting is bool(is_accepted or num_opened)


@pytest.mark.parametrize("way", ["connection", "page"])
async def test_a_worker_that_refused_stays_down_whatever_comes_from_it(way: str, world: RosterWorld) -> None:
    """A worker that refuses may be finishing its answers; bytes of these are no reason to send it more."""
    await world.add()
    if way == "page":
        world.probe().health = "answered 503"
        await world.look(times=2)
        silence(world.probe())
    else:
        silence(world.probe())
        world.roster.suspect(W, "cannot connect: refused", is_refused=True)
    for _ in range(3):
        world.num_reads += 1
        await world.look()
        assert (world.member().is_up, world.member().is_late) == (False, False)
    assert world.fleet.late.in_panic == {} and not world.fleet.is_ready("m")


async def test_late_facts_are_no_failure_of_a_worker_with_a_healthy_page(world: RosterWorld) -> None:
    """Events are unavailable, so facts are requested again, and their pages are late: the worker answered."""
    await world.add()
    world.feeds[0].is_connected = False

    async def late() -> Facts:
        raise ProbeTimeout("/v1/models did not answer in time")

    world.probe().facts = late  # type: ignore[method-assign]
    await world.look(times=3)
    assert (world.member().is_up, world.member().is_late) == (True, True)


async def test_a_late_worker_that_has_not_joined_is_waited_for(world: RosterWorld) -> None:
    world.probe().is_late = True
    await world.add()
    await world.look(times=2)
    assert (len(world.fleet), world.endpoint().last_error) == (0, "/health did not answer in time")
    world.probe().is_late = False
    await world.look()
    assert world.member().is_up
    assert world.probe().waits == [True, True, True, False]  # longer with each look, as usual once it joined


# another process -------------------------------------------------------------------------------


async def test_observers_are_notified_of_each_process(world: RosterWorld) -> None:
    await world.add()
    await world.look()
    assert (world.joined, world.left) == ([[W]], [])
    world.probe().ranks = {0: replace(RANK, start_time_s=2000.0)}
    await world.look()
    assert (world.joined, world.left) == ([[W], [W]], [W])
    world.roster.drop(URL)
    assert world.left == [W, W]


async def test_another_start_time_is_another_process_with_an_empty_cache(world: RosterWorld) -> None:
    await world.add()
    world.store(1, 2)
    old = world.feeds[0]
    world.probe().ranks = {0: replace(RANK, start_time_s=2000.0, num_gpu_blocks=50)}
    world.probe().served = (ModelInfo("other", "root2"),)
    await world.look()
    assert world.probe().num_facts == 2
    assert world.known.num_blocks("w:1") == 0
    assert (old.is_stopped, len(world.feeds), world.feeds[1].is_stopped) == (True, 2, False)
    assert world.member().worker.num_blocks == 50
    assert list(world.fleet.served()) == ["other"]


async def test_an_equal_or_missing_start_time_changes_nothing(world: RosterWorld) -> None:
    await world.add()
    world.store(1)
    for start in (1000.0, 1000.2, None):
        world.probe().ranks = {0: replace(RANK, start_time_s=start)}
        await world.look()
    assert (world.probe().num_facts, world.known.num_blocks("w:1")) == (1, 1)


async def test_a_block_size_reported_late_is_used(world: RosterWorld) -> None:
    """Metrics may not be ready when a worker joins; it is not routed by load for ever."""
    world.probe().ranks = {}
    await world.add()
    assert world.member().worker.block_size is None
    world.probe().ranks = {0: RANK}
    await world.look(times=3)
    assert world.member().worker.block_size == BLOCK_SIZE
    assert [feed.is_stopped for feed in world.feeds] == [True, False]
    assert world.probe().num_facts == 2


async def test_a_new_process_without_models_is_waited_for(world: RosterWorld) -> None:
    await world.add()
    world.probe().ranks, world.probe().served = {0: replace(RANK, start_time_s=2000.0)}, ()
    await world.look()
    assert (len(world.fleet), world.endpoint().facts) == (0, None)
    world.probe().served = (ModelInfo("m"),)
    await world.look()
    assert world.member().is_up


# suspicion -------------------------------------------------------------------------------------


async def test_a_refused_connection_takes_a_worker_down_until_it_answers(world: RosterWorld) -> None:
    await world.add()
    world.endpoint().has_looked.clear()
    world.roster.suspect(W, "refused", is_refused=True)
    assert (world.member().is_up, world.member().num_failures) == (False, 1)
    await world.endpoint().has_looked.wait()
    assert world.member().is_up


async def test_any_other_failure_triggers_a_probe_at_once(world: RosterWorld) -> None:
    await world.add()
    world.probe().health = "answered 500"
    world.endpoint().has_looked.clear()
    world.roster.suspect(W, "reset", is_refused=False)
    assert world.member().is_up
    await world.endpoint().has_looked.wait()
    assert world.endpoint().num_failures == 1


async def test_a_failure_during_a_probe_triggers_another(world: RosterWorld) -> None:
    await world.add()
    probe, looks = world.probe(), 0
    done = asyncio.Event()

    def before_health() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            world.roster.suspect(W, "reset", is_refused=False)
        else:
            done.set()

    probe.before_health = before_health
    await world.look()
    async with asyncio.timeout(patience(5)):
        await done.wait()


async def test_a_rank_that_refuses_takes_the_whole_endpoint_down(world: RosterWorld) -> None:
    world.probe().ranks = {0: RANK, 1: RANK}
    await world.add()
    world.roster.suspect(WorkerId("w:1#1"), "refused", is_refused=True)
    assert [m.is_up for m in world.fleet] == [False, False]


async def test_a_failure_of_a_dropped_worker_is_ignored(world: RosterWorld) -> None:
    await world.add()
    world.roster.suspect(WorkerId("gone"), "refused", is_refused=True)
    assert [member.is_up for member in world.fleet] == [True]


# dropping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["http://w:1", "w:1", "w:1#1"])
async def test_a_dropped_endpoint_is_forgotten_everywhere(world: RosterWorld, name: str) -> None:
    world.probe().ranks = {0: RANK, 1: RANK}
    world.probe().sources = (EventSource(0, "tcp://*:1"), EventSource(1, "tcp://*:2"))
    await world.add()
    await world.add("http://other:1")
    world.metrics.worker(WorkerId("w:1#0")).num_requests = 3
    task = world.endpoint().task
    assert world.roster.drop(name)
    assert [m.worker.id for m in world.fleet] == ["other:1"]
    assert [endpoint.url for endpoint in world.roster] == ["http://other:1"]
    assert [feed.is_stopped for feed in world.feeds[:2]] == [True, True]
    assert [worker for worker, _ in world.roster.stream_counts()] == ["other:1"]
    assert list(world.metrics.items()) == []
    assert world.gone == [URL]
    with pytest.raises(KeyError):
        world.known.num_blocks("w:1#0")
    assert task is not None
    await asyncio.wait([task])
    assert task.cancelled()


async def test_dropping_an_unknown_name_fails(world: RosterWorld) -> None:
    await world.add()
    assert not world.roster.drop("http://x:1")
    assert world.roster.drop(URL)
    assert not world.roster.drop(URL)


async def test_a_dropped_endpoint_can_come_back(world: RosterWorld) -> None:
    await world.add()
    world.roster.drop(URL)
    await world.add()
    assert (world.member().is_up, world.probe().num_facts) == (True, 2)


async def test_an_endpoint_can_be_dropped_while_it_is_waited_for(world: RosterWorld) -> None:
    world.probe().health = "loading"
    world.roster.add(URL)
    looked = Tasks().start("first look", world.roster.first_look())
    await asyncio.sleep(0)
    assert world.roster.drop("w:1")
    async with asyncio.timeout(patience(5)):
        await looked
    assert list(world.roster) == []


async def test_stopping_closes_feeds_and_probes(world: RosterWorld) -> None:
    await world.add()
    task = world.endpoint().task
    await world.roster.stop()
    assert world.feeds[0].is_stopped
    assert task is not None and task.done()


async def test_an_endpoint_without_a_start_time_is_probed_again_after_it_was_down(world: RosterWorld) -> None:
    probe = world.probe()
    probe.ranks = {0: replace(RANK, start_time_s=None)}
    await world.add()
    for sources, num_feeds in ((probe.sources, 1), ((), 1), ((), 1)):
        probe.sources = sources
        probe.health = "down"
        await world.look(times=2)
        probe.health = None
        await world.look()
        assert len(world.feeds) == num_feeds
        assert world.member().is_up
    # with events, the earlier state stays: they report a restart; else it joined again
    assert [feed.is_stopped for feed in world.feeds] == [True]
    assert probe.num_facts == 4


async def test_each_probe_is_reported_to_observers(world: RosterWorld) -> None:
    await world.add()
    later = replace(RANK, prefix_cache_queries_total=7)
    world.probe().ranks = {0: later}
    await world.look()
    world.probe().ranks = "too busy"
    await world.look()
    assert world.looks == [(W, RANK), (W, later), (W, None)]


# identity ----------------------------------------------------------------------------------------


async def test_a_restart_reported_by_events_first_keeps_the_new_blocks(world: RosterWorld) -> None:
    """A new subscription without replays would not know the blocks that the new process has stored by now."""
    world.probe().sources = (EventSource(0, "tcp://*:1"),)
    await world.add()
    subscription = world.subscription()
    subscription.live([b"", seq_frame(0), payload(1, 2)])
    subscription.disconnected()
    subscription.live([b"", seq_frame(0), payload(3, ts=2)])
    world.probe().ranks = {0: replace(RANK, start_time_s=2000.0)}
    await world.look()
    assert (len(world.feeds), world.known.num_blocks("w:1")) == (1, 1)
    assert world.member().stream is StreamState.EXACT
    assert world.restarted == [W]
    await world.look()
    assert world.probe().num_facts == 2
    world.probe().ranks = {0: replace(RANK, start_time_s=3000.0)}  # a restart that events did not report
    await world.look()
    assert (len(world.feeds), world.known.num_blocks("w:1")) == (2, 0)


async def test_a_stream_that_outlives_a_restart_is_opened_again(world: RosterWorld) -> None:
    await world.add()
    world.store(1, 2)
    world.probe().ranks = {0: replace(RANK, start_time_s=2000.0)}
    await world.look()
    assert (len(world.feeds), world.known.num_blocks("w:1")) == (2, 0)


@pytest.mark.parametrize(("counted", "num_feeds"), [((500, 20), 2), ((500, 500), 1), ((500, None), 1)])
async def test_without_a_start_time_counters_that_fall_are_another_process(
    world: RosterWorld, counted: tuple[int | None, int | None], num_feeds: int
) -> None:
    def ranks_of(num: int | None, start: float | None) -> dict[int, EngineMetrics]:
        return {0: replace(RANK, start_time_s=start, prefix_cache_queries_total=num)}

    world.probe().ranks = ranks_of(0, None)
    await world.add()
    world.store(1, 2)
    for num in counted:
        world.probe().ranks = ranks_of(num, None)
        await world.look()
    assert len(world.feeds) == num_feeds
    assert world.known.num_blocks("w:1") == (2 if num_feeds == 1 else 0)


async def test_a_start_time_overrides_counters(world: RosterWorld) -> None:
    await world.add()
    for num in (500, 20):
        world.probe().ranks = {0: replace(RANK, prefix_cache_queries_total=num)}
        await world.look()
    assert len(world.feeds) == 1


async def test_a_changed_event_address_is_followed(world: RosterWorld) -> None:
    """Restarted between two probes, at other free ports, and without a start time."""
    world.probe().ranks = {0: replace(RANK, start_time_s=None)}
    await world.add()
    world.feeds[0].is_connected = False
    await world.look()
    assert len(world.feeds) == 1
    world.probe().sources = (EventSource(0, "tcp://*:77", "tcp://*:78"),)
    await world.look()
    assert [feed.endpoint for feed in world.feeds] == ["tcp://*:1", "tcp://*:77"]


# several behind one address ------------------------------------------------------------------------


def began(seconds: float) -> dict[int, EngineMetrics]:
    return {0: replace(RANK, start_time_s=seconds)}


async def test_an_address_of_several_engines_is_rejected_with_the_reason(
    world: RosterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.add()
    for seconds in (2000.0, 1000.0, 2000.0, 1000.0):
        world.probe().ranks = began(seconds)
        await world.look()
    assert len(world.fleet) == 0
    error = world.endpoint().last_error or ""
    assert "several engines answer here, started at 00:16:40 and at 00:33:20" in error
    assert [record.levelname for record in caplog.records if "several engines" in record.message] == ["ERROR"]


async def test_an_address_joins_when_one_engine_has_answered_for_long(world: RosterWorld) -> None:
    await world.add()
    for seconds in (2000.0, 1000.0):
        world.probe().ranks = began(seconds)
        await world.look()
    assert len(world.fleet) == 0
    await world.look(times=6)  # each probe over several connections
    assert len(world.fleet) == 1


async def test_a_restarted_engine_is_one_engine(world: RosterWorld) -> None:
    await world.add()
    for seconds in (2000.0, 3000.0, 4000.0):
        world.probe().ranks = began(seconds)
        await world.look()
    assert (len(world.fleet), world.endpoint().last_error) == (1, None)
