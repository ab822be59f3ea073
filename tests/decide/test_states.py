import pytest

from gateway.decide.states import TABLE, DecisionEvent, DecisionState, after

S, E = DecisionState, DecisionEvent


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], S.WAITING),
        ([E.REFUSED], S.ENDED),
        ([E.LEFT], S.ENDED),
        ([E.PICKED], S.BOOKED),
        ([E.PICKED, E.FIRST_TOKEN], S.ANSWERING),
        ([E.PICKED, E.FINISHED], S.ENDED),
        ([E.PICKED, E.EXPIRED], S.ENDED),
        ([E.PICKED, E.FIRST_TOKEN, E.FAILED], S.ENDED),
        ([E.PICKED, E.FIRST_TOKEN, E.LEFT], S.ENDED),
    ],
)
def test_events_lead_from_request_to_release(events: list[DecisionEvent], state: DecisionState) -> None:
    reached: DecisionState | None = S.WAITING
    for event in events:
        assert reached is not None
        reached = after(reached, event)
    assert reached is state


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (S.WAITING, E.FINISHED),
        (S.WAITING, E.EXPIRED),
        (S.BOOKED, E.PICKED),
        (S.BOOKED, E.REFUSED),
        (S.ANSWERING, E.FIRST_TOKEN),
        *[(S.ENDED, event) for event in E],
    ],
)
def test_events_out_of_place_change_nothing(state: DecisionState, event: DecisionEvent) -> None:
    assert after(state, event) is None


def test_every_state_has_its_row_and_no_way_leads_out_of_the_end() -> None:
    assert set(TABLE) == set(S) and not TABLE[S.ENDED]
    assert all(S.ENDED in row.values() for state, row in TABLE.items() if state is not S.ENDED)
