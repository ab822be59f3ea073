from typing import Any, cast

from gateway.core.decision import Decision
from gateway.epp.prefill_booking import PrefillBooking
from gateway.routing.router import Router


def test_the_first_token_ends_the_booking_at_the_prefill_worker() -> None:
    class Recorded:
        def prefilled(self, decision: object) -> None:
            seen.append(decision)

    seen: list[Any] = []
    decision = cast(Decision, object())
    PrefillBooking(cast(Router, Recorded())).first_token(decision, 0.0, 1.0)
    assert seen == [decision]
