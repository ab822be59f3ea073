from gateway.core.route_table import RouteKind
from gateway.parity.probes import MUST_ANSWER, PAIR_PROBES, PROBES


def test_the_first_probes_are_a_text_and_a_chat() -> None:
    assert [probe.is_chat for probe in PROBES[:MUST_ANSWER]] == [False, True]
    assert [probe.is_chat for probe in PAIR_PROBES] == [False, True]


def test_each_probe_has_its_own_name() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    for probe in PROBES:
        request = probe.request("m")
        assert request.model == "m"
        assert (request.kind is RouteKind.CHAT) is probe.is_chat
