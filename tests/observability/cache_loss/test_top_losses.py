from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.attribution import LossCause
from gateway.observability.cache_loss.top_losses import TopLosses


def test_losses_of_one_kind_are_one_offender() -> None:
    offenders = TopLosses()
    offenders.add(LossCause.EVICTED, "m", 10, "d1", "w", holder=WorkerId("w"))
    offenders.add(LossCause.EVICTED, "m", 5, "d2", "w", holder=WorkerId("w"))
    offenders.add(LossCause.EVICTED, "n", 7, "d3", "w", holder=WorkerId("w"))
    first, second = offenders.worst()
    assert (first["recomputed_tokens"], first["recomputed_requests"], first["latest_decision_id"]) == (
        15,
        2,
        "d2",
    )
    assert (second["model"], second["recomputed_tokens"]) == ("n", 7)
    assert [each["recomputed_tokens"] for each in offenders.worst(1)] == [15]


def test_an_offender_has_the_same_id_in_every_process() -> None:
    ids = []
    for _ in range(2):
        offenders = TopLosses()
        offenders.add(LossCause.BROKEN_PREFIX, "m\ud800", 1, "d", 7)
        ids.append(offenders.worst()[0]["id"])
    assert ids[0] == ids[1]


def test_known_groups_are_found() -> None:
    offenders = TopLosses()
    added = offenders.add(LossCause.BROKEN_PREFIX, "m", 1, "d", 7)
    assert offenders.find(LossCause.BROKEN_PREFIX, "m", 7) is added
    assert offenders.find(LossCause.BROKEN_PREFIX, "m", 8) is None


def test_the_smallest_loss_is_dropped_when_full() -> None:
    offenders = TopLosses(max_kept=10)
    for number in range(100):
        offenders.add(LossCause.EVICTED, "m", 1000 if number == 0 else number, "d", number)
    assert len(offenders) <= 10
    assert offenders.worst(1)[0]["recomputed_tokens"] == 1000
