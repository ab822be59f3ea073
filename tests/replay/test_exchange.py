from array import array

from gateway.core.decision import Choice
from gateway.replay.exchange import VirtualExchange
from gateway.replay.fleet import Setup, VirtualFleet, worker_of
from gateway.replay.job import Job
from gateway.replay.profile import H100_8B


def test_a_session_goes_to_the_policy() -> None:
    seen = []

    class First:
        name = "first"

        def choose(self, query, candidates, rng):  # type: ignore[no-untyped-def]
            seen.append(query.session)
            return Choice(0, "first")

    VirtualFleet(Setup(2, H100_8B, policy=First)).run(
        [Job(0.0, array("I", [1, 2]), 1, session="s"), Job(1.0, array("I", [1, 2]), 1)]
    )
    assert seen == ["s", None]


def test_one_that_lost_its_worker_goes_to_another_and_begins_again() -> None:
    fleet = VirtualFleet(Setup(2, H100_8B))
    job = Job(0.0, array("I", range(100)), 50)
    ended: list[float] = []
    exchange = VirtualExchange(fleet, job, lambda: ended.append(fleet.clock.now))
    lost = []

    def lose() -> None:
        assert job.decision is not None and job.first_s is not None
        lost.append(job.decision.worker.id)
        exchange.lose(worker_of(7))  # of which it has nothing
        assert exchange in fleet.open
        fleet.engines[lost[0]].stop()
        exchange.lose(lost[0])

    fleet.clock.at(0.0, exchange.start)
    fleet.clock.at(0.1, lose)
    fleet.clock.run()
    assert job.decision is not None and job.decision.worker.id not in lost
    assert (job.num_attempts, job.decision.attempt) == (2, 2)
    assert job.first_s is not None and job.first_s > 0.1 and ended == [job.last_s]
    assert not fleet.open
