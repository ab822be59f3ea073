from collections import Counter
from dataclasses import replace

from gateway.core.decision import Candidate
from gateway.core.rendezvous import BOUND, home_of, ranked
from gateway.core.value import replace as changed
from gateway.core.worker import WorkerId
from tests.policies.contract import candidate

FLEET = [candidate(f"10.0.0.{i}:8000") for i in range(10)]


def homes(candidates: list[Candidate], keys: range) -> dict[str, WorkerId]:
    return {f"s{key}": candidates[home_of(f"s{key}", candidates)[0]].id for key in keys}


def test_keys_are_spread_evenly() -> None:
    counts = Counter(homes(FLEET, range(10_000)).values())
    assert len(counts) == 10 and all(900 < num < 1100 for num in counts.values())


def test_a_worker_that_leaves_moves_its_own_keys_only() -> None:
    before, after = homes(FLEET, range(1000)), homes(FLEET[1:], range(1000))
    moved = {key for key in before if before[key] != after[key]}
    assert moved == {key for key in before if before[key] == FLEET[0].id}


def test_the_order_of_workers_is_irrelevant_and_processes_agree() -> None:
    assert homes(FLEET, range(100)) == homes(FLEET[::-1], range(100))
    assert list(homes(FLEET, range(4)).values()) == [f"10.0.0.{i}:8000" for i in (3, 6, 6, 2)]


def test_numbers_are_hashed_like_texts() -> None:
    assert {home_of(key, FLEET)[0] for key in range(1000)} == set(range(10))


def test_no_worker_exceeds_its_bound_of_the_mean() -> None:
    fleet = list(FLEET)
    for _ in range(1000):
        index, _ = home_of("the same", fleet)
        fleet[index] = changed(fleet[index], num_in_flight=fleet[index].num_in_flight + 1)
    most = max(each.num_in_flight for each in fleet)
    assert most <= 100 * BOUND + 1
    assert sum(each.num_in_flight > 0 for each in fleet) == 8


def test_waiting_requests_of_others_count_and_the_next_worker_takes_over() -> None:
    first, second, *_ = ranked("s", FLEET)
    busy = [changed(each, num_waiting=50) if each is first else each for each in FLEET]
    index, is_first = home_of("s", busy)
    assert (busy[index].id, is_first) == (second.id, False)
    index, is_first = home_of("s", FLEET)
    assert (FLEET[index].id, is_first) == (first.id, True)


def test_workers_are_hashed_by_their_ids() -> None:
    twins = [changed(FLEET[0], worker=replace(FLEET[0].worker, id=WorkerId(f"w#{i}"))) for i in range(4)]
    assert len(set(homes(twins, range(100)).values())) == 4
