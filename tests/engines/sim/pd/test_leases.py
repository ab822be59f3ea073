"""Leases: pinned blocks are fetched once, or wait until their lease ends; they are freed exactly once."""

from engines.sim.pd.leases import Leases


class Freed(list[str]):
    def pin(self, leases: Leases, key: str, now: float = 0.0) -> None:
        leases.pin(key, 100, 7, 1, lambda: self.append(key), now)


def test_a_finished_fetch_frees_the_blocks() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a")
    assert leases.num_pinned_blocks == 7
    taken = leases.take("a")
    assert taken is not None and taken.num_tokens == 100
    assert (leases.num_pinned_blocks, freed) == (7, [])
    leases.fetched("a")
    leases.fetched("a")
    assert (leases.num_pinned_blocks, leases.num_fetched, freed) == (0, 1, ["a"])


def test_a_lease_can_be_taken_once() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a")
    leases.take("a")
    assert leases.take("a") is None
    assert leases.take("b") is None
    assert leases.num_late == 2


def test_an_aborted_fetch_can_be_repeated() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a")
    leases.take("a")
    leases.give_back("a")
    leases.give_back("a")
    assert (leases.keys, freed) == (["a"], [])
    assert leases.take("a") is not None


def test_a_lease_expires_but_not_during_a_fetch() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a", now=0.0)
    freed.pin(leases, "b", now=0.0)
    freed.pin(leases, "c", now=1.0)
    leases.take("b")
    assert leases.expire(29.9) == []
    assert leases.expire(30.0) == ["a"]
    assert (leases.num_expired, freed, leases.keys) == (1, ["a"], ["c", "b"])


def test_dropped_blocks_are_free() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a")
    assert leases.drop("a") and not leases.drop("a")
    assert (freed, leases.num_expired) == (["a"], 0)
    assert repr(leases) == "Leases(0 pinned, 0 being fetched)"


def test_an_announced_fetch_renews_the_lease() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a", now=0.0)
    freed.pin(leases, "b", now=10.0)
    assert leases.next_deadline == 30.0
    leases.renew("a", now=20.0)
    leases.renew("gone", now=20.0)
    assert leases.next_deadline == 40.0
    assert leases.expire(40.0) == ["b"]
    assert leases.expire(50.0) == ["a"]
    assert leases.next_deadline is None


def test_a_key_pinned_again_frees_its_earlier_blocks() -> None:
    leases, freed = Leases(30.0), Freed()
    freed.pin(leases, "a")
    freed.pin(leases, "a")
    assert (freed, leases.num_pinned_blocks) == (["a"], 7)
