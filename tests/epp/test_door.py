import pytest

from tests.support.worlds.endpoint_picks import W1, Epp


def test_pickers_of_a_door_share_its_counts_and_its_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    epp = Epp(monkeypatch, W1)
    epp.picked()
    epp.picked()
    assert epp.door.context is epp.context and epp.door.counts["picked"] == 2 == epp.in_flight()
