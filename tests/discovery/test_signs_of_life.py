"""Signs of life beside a late health page; test_roster.py has what follows from them."""

from collections.abc import Mapping
from typing import cast

import pytest

from gateway.core.engine import EngineMetrics
from gateway.core.fleet import Member
from gateway.discovery.endpoint import Endpoint
from gateway.discovery.probe import Probe, ProbeTimeout
from gateway.discovery.signs_of_life import Heard, has_refused, health_of, num_signs, pages_of_late
from tests.support.worlds.lifecycle import worker_of
from tests.support.worlds.roster import RANK, URL, FakeProbe


def endpoint_of(probe: FakeProbe) -> Endpoint:
    return Endpoint(URL, cast(Probe, probe))


async def load(endpoint: Endpoint) -> Mapping[int, EngineMetrics]:
    return {0: RANK}


def test_each_sign_changes_the_number() -> None:
    probe, reads = FakeProbe(URL), [0]
    endpoint, heard = endpoint_of(probe), Heard(lambda url: reads[0])
    seen = {num_signs(endpoint, heard)}
    probe.num_answers += 1
    seen.add(num_signs(endpoint, heard))
    reads[0] += 1
    seen.add(num_signs(endpoint, heard))
    assert len(seen) == 3


async def test_metrics_of_a_late_endpoint_come_whatever_its_health_does() -> None:
    probe = FakeProbe(URL)
    endpoint = endpoint_of(probe)
    assert await pages_of_late(endpoint, load) == {0: RANK}
    probe.is_late, endpoint.late_ranks = True, {}
    with pytest.raises(ProbeTimeout):
        await pages_of_late(endpoint, load)
    assert endpoint.late_ranks == {0: RANK}


@pytest.mark.parametrize(
    ("is_up", "is_late", "expected"),
    [(True, False, False), (True, True, False), (False, True, False), (False, False, True)],
)
def test_a_worker_has_refused_if_it_is_down_and_not_late(is_up: bool, is_late: bool, expected: bool) -> None:
    member = Member(worker_of("w:1"), is_up=is_up, is_late=is_late)
    assert has_refused([Member(worker_of("v:1")), member]) is expected
    assert health_of(member) == (is_up, is_late, True)
