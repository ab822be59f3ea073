"""The life of one decision, as a table without I/O.

    state      picked   refused  first token  finished  failed  left     expired
    WAITING    BOOKED   ENDED    -            -         -       ENDED    -
    BOOKED     -        -        ANSWERING    ENDED     ENDED   ENDED    ENDED
    ANSWERING  -        -        -            ENDED     ENDED   ENDED    ENDED
    ENDED      -        -        -            -         -       -        -

An event without an entry changes nothing: a report that came twice, an answer after the caller has left.
Every booking is released by the step to ENDED, once.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class DecisionState(Enum):
    WAITING = "waits for tokens, admission or a worker"
    BOOKED = "booked at a worker"
    ANSWERING = "the worker answers"
    ENDED = "released"


class DecisionEvent(Enum):
    PICKED = "picked"
    REFUSED = "rejected"
    FIRST_TOKEN = "first token"
    FINISHED = "finished"
    FAILED = "failed"
    LEFT = "caller left"
    EXPIRED = "expired"


_S, _E = DecisionState, DecisionEvent
_ENDS: Final = {event: _S.ENDED for event in (_E.FINISHED, _E.FAILED, _E.LEFT, _E.EXPIRED)}

TABLE: Final[Mapping[DecisionState, Mapping[DecisionEvent, DecisionState]]] = {
    _S.WAITING: {_E.PICKED: _S.BOOKED, _E.REFUSED: _S.ENDED, _E.LEFT: _S.ENDED},
    _S.BOOKED: {_E.FIRST_TOKEN: _S.ANSWERING, **_ENDS},
    _S.ANSWERING: _ENDS,
    _S.ENDED: {},
}


def after(state: DecisionState, event: DecisionEvent) -> DecisionState | None:
    """Return the state after an event; None where the event has no meaning there and changes nothing."""
    return TABLE[state].get(event)
