"""Fair queue: priority, fairness by tokens, order of arrival, and displacement from a full queue."""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy.admission.fair_queue import MAX_BANDS_KEPT, MIN_KEPT, FairQueue, QueueEntry


def filled(*entries: QueueEntry, max_waiting: int = 1000) -> FairQueue:
    queue = FairQueue(max_waiting)
    for entry in entries:
        assert queue.push(entry) is None
    return queue


def of(tenant: str, tokens: int = 10, priority: int = 0, weight: float = 1.0) -> QueueEntry:
    return QueueEntry(tenant, tokens, 0.0, priority=priority, weight=weight)


def served(queue: FairQueue, num: int = 1000) -> str:
    """Tenants in the order in which they are served."""
    turns = []
    while len(turns) < num and (entry := queue.pop()):
        turns.append(entry.tenant)
    return "".join(turns)


def test_an_empty_queue_has_no_next_request() -> None:
    queue = FairQueue(3)
    assert queue.pop() is None and len(queue) == 0 and queue.num_tokens == 0
    assert queue.expire(1e9) == [] and not queue.remove(of("a"))


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    entries = [of("a", tokens) for tokens in (500, 1, 70)]
    queue = filled(*entries)
    assert (len(queue), queue.num_tokens) == (3, 571)
    assert [queue.pop() for _ in range(4)] == [*entries, None]


def test_lower_priorities_go_first_as_in_vllm() -> None:
    queue = filled(of("c", priority=5), of("b", priority=0), of("a", priority=-3), of("d", priority=5))
    assert [band.priority for band in queue.bands()] == [-3, 0, 5]
    assert served(queue) == "abcd"


def test_a_tenant_with_a_hundred_does_not_starve_one_with_three() -> None:
    queue = filled(*[of("a") for _ in range(100)], *[of("b") for _ in range(3)])
    assert served(queue, 7) == "abababa"


def test_long_prompts_are_served_less_often() -> None:
    queue = filled(*[of("a", 400) for _ in range(10)], *[of("b", 100) for _ in range(40)])
    assert Counter(served(queue, 25)) == {"a": 5, "b": 20}


def test_weight_is_a_share() -> None:
    queue = filled(*[of("a", weight=3.0) for _ in range(40)], *[of("b") for _ in range(40)])
    assert Counter(served(queue, 40)) == {"a": 30, "b": 10}


def test_idle_time_earns_no_credit() -> None:
    queue = filled(*[of("a") for _ in range(50)])
    served(queue, 40)
    for _ in range(10):
        queue.push(of("b"))
    assert served(queue, 6) == "babab" + "a"


def test_the_cost_of_an_answer_counts_later() -> None:
    queue = filled(*[of("a") for _ in range(10)], *[of("b") for _ in range(10)])
    served(queue, 2)
    queue.charge("a", 0, 30)
    assert served(queue, 4) == "bbba"
    queue.charge("unknown", 0, 30)
    queue.charge("a", 7, 30)


def test_usage_while_no_request_waited_is_no_debt() -> None:
    queue = filled(of("a"), of("b"))
    served(queue)
    queue.charge("a", 0, 2_000_000)
    for _ in range(30):
        queue.push(of("a"))
        queue.push(of("b"))
    assert Counter(served(queue, 30)) == {"a": 15, "b": 15}


# displacement -----------------------------------------------------------------------------------------


def test_a_full_queue_rejects_the_newest() -> None:
    queue = filled(of("a"), of("a"), max_waiting=2)
    late = of("a")
    assert not queue.has_room("a", 0)
    assert queue.push(late) is late and len(queue) == 2


def test_the_longest_tenant_queue_gives_way_to_a_shorter_one() -> None:
    entries = [of("a") for _ in range(4)]
    queue = filled(*entries, max_waiting=4)
    assert queue.has_room("b", 0)
    assert queue.push(of("b")) is entries[3]
    assert queue.push(of("b")) is entries[2]
    late = of("b")
    assert queue.push(late) is late  # both have two
    assert served(queue) == "abab"


def test_the_last_band_gives_way_to_an_earlier_one() -> None:
    low, lower = of("a", priority=1), of("a", priority=2)
    queue = filled(low, lower, max_waiting=2)
    assert queue.push(of("a")) is lower
    assert queue.push(of("a", priority=-1)) is low
    late = of("b", priority=3)
    assert not queue.has_room("b", 3)
    assert queue.push(late) is late


def test_a_queue_without_room() -> None:
    queue, entry = FairQueue(0), of("a")
    assert not queue.has_room("a", 0) and queue.push(entry) is entry


# removal ------------------------------------------------------------------------------------------------


def test_removed_requests_are_not_served() -> None:
    entries = [of("a"), of("a"), of("b")]
    queue = filled(*entries)
    assert queue.remove(entries[0]) and not queue.remove(entries[0])
    assert (len(queue), queue.num_tokens) == (2, 20)
    assert [queue.pop(), queue.pop(), queue.pop()] == [entries[1], entries[2], None]


def test_deadlines_remove_expired_requests() -> None:
    first, second, third = (QueueEntry("a", 1, 0.0, deadline_s=at) for at in (3.0, 2.0, 2.5))
    queue = filled(first, second, third, of("a"))
    queue.remove(third)
    assert queue.expire(1.9) == []
    assert queue.expire(3.0) == [second, first]
    assert len(queue) == 1


def test_removed_requests_are_not_kept() -> None:
    """Clients arrive and disconnect while none is served."""
    queue = filled(of("waits"))
    for i in range(5000):
        entry = QueueEntry(f"t{i}", 1, 0.0, deadline_s=1e9, priority=i % 500)
        queue.push(entry)
        queue.remove(entry)
    assert len(queue._deadlines) <= 2 * MIN_KEPT + 2
    assert len(queue._bands) <= MAX_BANDS_KEPT + 1
    for i in range(5000):
        entry = QueueEntry(f"t{i}", 1, 0.0)
        queue.push(entry)
        queue.remove(entry)
    (band,) = queue.bands()
    assert len(band._queues) <= 2 * MIN_KEPT + 4 and len(band._turns) <= 2 * MIN_KEPT + 4
    assert served(queue) == "waits"


def test_tokens_ahead_are_counted() -> None:
    queue = filled(of("z", 7, priority=-1), *[of("a", 100) for _ in range(10)], of("y", 5, priority=1))
    assert queue.ahead("a", 0, 20) == 7 + 1000 + 20
    assert queue.ahead("b", 0, 20) == 7 + 20 + 20  # a's requests until then have as many tokens
    assert queue.ahead("b", -2, 20) == 20
    assert queue.ahead("b", 1, 50) == 1007 + 5 + 50


# machines -----------------------------------------------------------------------------------------------

COMING = st.tuples(
    st.just("push"), st.sampled_from("abcd"), st.integers(0, 2), st.integers(1, 50), st.integers(0, 30)
)
DOING = st.one_of(
    COMING,
    COMING,
    st.tuples(st.just("pop")),
    st.tuples(st.just("gone"), st.integers(0, 40)),
    st.tuples(st.just("expire")),
)


@dataclass
class Waiting:
    """Reference model of the queue: the waiting requests, without any cleverness."""

    entries: list[QueueEntry] = field(default_factory=list)

    def may_be_next(self, entry: QueueEntry) -> bool:
        """True if neither an earlier band nor an earlier request of its own tenant waits."""
        first = next(e for e in self.entries if e.tenant == entry.tenant and e.priority == entry.priority)
        return first is entry and entry.priority == min(e.priority for e in self.entries)


@given(st.lists(DOING, max_size=120), st.integers(1, 12))
def test_no_request_is_lost_served_twice_or_out_of_order(doing: list[tuple[object, ...]], most: int) -> None:
    queue, waiting, ended = FairQueue(most), Waiting(), set[int]()
    now = 0.0

    def end(entry: QueueEntry) -> None:
        assert id(entry) not in ended
        ended.add(id(entry))
        waiting.entries.remove(entry)

    kept = []  # so that no two have the same id
    for step, *how in doing:
        now += 1.0
        if step == "push":
            tenant, priority, tokens, patience = how
            entry = QueueEntry(str(tenant), int(str(tokens)), now, priority=int(str(priority)),
                          deadline_s=now + int(str(patience)))  # fmt: skip
            kept.append(entry)
            has_room = queue.has_room(entry.tenant, entry.priority)
            waiting.entries.append(entry)
            out = queue.push(entry)
            assert has_room == (out is not entry)
            if out is not None:
                assert out.priority == max(e.priority for e in waiting.entries)
                end(out)
        elif step == "pop":
            popped = queue.pop()
            assert (popped is None) == (not waiting.entries)
            if popped:
                assert waiting.may_be_next(popped)
                end(popped)
        elif step == "expire":
            over = queue.expire(now)
            assert over == sorted(over, key=lambda e: e.deadline_s)
            for entry in over:
                assert entry.deadline_s <= now
                end(entry)
            assert all(e.deadline_s > now for e in waiting.entries)
        elif waiting.entries:
            entry = waiting.entries[int(str(how[0])) % len(waiting.entries)]
            assert queue.remove(entry)
            end(entry)
        assert len(queue) == len(waiting.entries) <= most
        assert queue.num_tokens == sum(e.num_tokens for e in waiting.entries)
    while popped := queue.pop():
        end(popped)
    assert not waiting.entries and len(ended) == len(kept)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500)), min_size=1, max_size=200),
    st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 4.0])] * 3),
)
def test_tenants_that_wait_are_served_alike(
    coming: list[tuple[str, int]], weights: tuple[float, float, float]
) -> None:
    """In any span in which two tenants wait, the work served to them, by their weights, differs by at most
    one request of each (start-time fair queuing)."""
    weight = dict(zip("abc", weights, strict=True))
    queue = filled(*[of(tenant, tokens, weight=weight[tenant]) for tenant, tokens in coming])
    left = Counter(tenant for tenant, _ in coming)
    largest = {t: max([n for o, n in coming if o == t], default=0) / weight[t] for t in "abc"}
    spans = {(first, second): [0.0] for first in "abc" for second in "abc" if first < second}
    while entry := queue.pop():
        cost = entry.num_tokens / entry.weight
        for (first, second), gaps in spans.items():
            if left[first] and left[second]:
                gaps.append(gaps[-1] + cost * ((entry.tenant == first) - (entry.tenant == second)))
        left[entry.tenant] -= 1
    for (first, second), gaps in spans.items():
        assert max(gaps) - min(gaps) <= largest[first] + largest[second] + 1e-6


def test_first_come_first_served_at_random() -> None:
    rng = random.Random(3)
    queue, lines = FairQueue(10_000), {t: deque[QueueEntry]() for t in "abcdefgh"}
    for _ in range(5000):
        if rng.random() < 0.6:
            entry = of(rng.choice("abcdefgh"), rng.randint(1, 100))
            queue.push(entry)
            lines[entry.tenant].append(entry)
        elif popped := queue.pop():
            assert lines[popped.tenant].popleft() is popped


def test_memory_is_taken_from_later_priorities_then_from_tenants_with_more_tokens() -> None:
    queue = FairQueue(10)
    heavy = [QueueEntry("heavy", 400, 0.0) for _ in range(2)]
    late = QueueEntry("late", 10, 0.0, priority=1)
    for each in (*heavy, late):
        queue.push(each)
    assert queue.displace("light", 0, 100) is late
    assert queue.displace("light", 0, 900) is None, "it would be the heavier one"
    assert queue.displace("light", 0, 100) is heavy[1]
    assert queue.displace("light", 1, 100) is None, "the rest goes first"
    assert len(queue) == 1
