"""Membership: endpoints of sources, and the workers that join, drain and leave."""

import pytest

from gateway.core.blocks import BlockHash
from gateway.core.worker import Role
from gateway.discovery.kubernetes import membership as module
from gateway.discovery.kubernetes.endpoints import EndpointState, KubernetesEndpoint
from gateway.discovery.kubernetes.membership import (
    NO_LONGER_LISTED,
    NOT_READY,
    TERMINATING,
    SourceMembers,
)
from tests.support.worlds.kube_membership import OTHER, SOURCE, TWO, URL, MembershipWorld
from tests.support.worlds.lifecycle import warnings

READY, GONE, UNREADY = EndpointState.READY, EndpointState.DRAINING, EndpointState.NOT_READY


def end(
    url: str = URL, uid: str = "u", state: EndpointState = READY, role: Role | None = None
) -> KubernetesEndpoint:
    return KubernetesEndpoint(url, uid, 1, state, role)


async def test_ready_endpoints_join_with_the_settings_of_their_source() -> None:
    world = MembershipWorld()
    world.membership.sources[SOURCE].role = Role.DECODE
    await world.apply(end(), end(TWO, role=Role.PREFILL), end("http://10.0.0.3:1", state=UNREADY))
    assert world.urls == [URL, TWO]
    assert world.inherited == [(URL, SOURCE, "vllm.llm.svc"), (TWO, SOURCE, "vllm.llm.svc")]
    assert world.world.roster.declared.roles == {URL: Role.DECODE, TWO: Role.DECODE}
    await world.world.roster.stop()


async def test_a_label_gives_a_role_where_the_source_has_none() -> None:
    world = MembershipWorld()
    await world.apply(end(role=Role.PREFILL))
    assert world.world.roster.declared.roles == {URL: Role.PREFILL}
    await world.apply(end(role=Role.DECODE))
    assert (world.world.roster.declared.roles, world.world.gone) == ({URL: Role.DECODE}, [URL])
    await world.world.roster.stop()


@pytest.mark.parametrize(
    ("endpoints", "why"), [((), NO_LONGER_LISTED), ((end(state=GONE),), TERMINATING)], ids=["gone", "ending"]
)
async def test_endpoints_leave(endpoints: tuple[KubernetesEndpoint, ...], why: str) -> None:
    world = MembershipWorld()
    await world.apply(end())
    await world.apply(*endpoints)
    assert (world.urls, world.why(), world.lifecycle.draining) == ([URL], why, {URL: True})
    assert world.lifecycle.specs == []  # another gateway finds out by itself
    world.finish_drains()
    await world.apply(*endpoints)
    assert world.urls == []
    await world.world.roster.stop()


async def test_a_terminating_pod_that_was_never_here_does_not_join() -> None:
    world = MembershipWorld()
    await world.apply(end(state=GONE))
    assert (world.urls, world.lifecycle.draining) == ([], {})


async def test_an_endpoint_that_is_not_ready_keeps_its_blocks() -> None:
    world = MembershipWorld()
    await world.apply(end())
    await world.apply(end(state=UNREADY))
    assert (world.why(), world.lifecycle.draining) == (NOT_READY, {URL: False})
    world.finish_drains()
    await world.apply(end())
    assert (world.urls, world.why(), world.world.gone) == ([URL], None, [])
    await world.world.roster.stop()


async def test_readiness_that_flaps_leaves_the_same_worker_with_its_blocks() -> None:
    world = MembershipWorld()
    await world.apply(end())
    (worker,) = world.workers(URL)
    world.world.known.assumed.pin(worker.id, [BlockHash(1)])
    for state in (UNREADY, READY) * 20:
        await world.apply(end(state=state))
    assert (world.workers(URL), world.world.gone, world.why()) == ((worker,), [], None)
    assert world.world.known.assumed.num_pinned(worker.id) == 1
    await world.world.roster.stop()


async def test_another_uid_is_another_engine_of_which_nothing_is_known() -> None:
    world = MembershipWorld()
    await world.apply(end(uid="first"))
    (worker,) = world.workers(URL)
    assumed = world.world.known.assumed
    assumed.pin(worker.id, [BlockHash(1)])
    assert assumed.num_pinned(worker.id) == 1
    await world.apply(end(uid="second"))
    assert (world.world.gone, world.world.left, world.urls) == ([URL], [worker.id], [URL])
    assert assumed.num_pinned(worker.id) == 0
    await world.world.roster.stop()


async def test_an_unknown_uid_is_no_other_engine() -> None:
    world = MembershipWorld()
    await world.apply(end(uid=""))
    await world.apply(end(uid="u"))
    assert world.world.gone == []
    await world.world.roster.stop()


async def test_a_drain_by_an_operator_survives() -> None:
    world = MembershipWorld()
    await world.apply(end())
    world.lifecycle.drain(URL, (), "asked for")
    await world.apply(end(state=UNREADY))
    assert world.why() == "asked for"
    await world.apply(end())
    assert world.why() == "asked for"
    await world.apply()
    assert world.why() == NO_LONGER_LISTED
    await world.world.roster.stop()


async def test_an_endpoint_that_another_source_has_stays() -> None:
    world = MembershipWorld()
    world.membership.sources[OTHER] = SourceMembers()
    await world.apply(end())
    await world.apply(end(), source=OTHER)
    await world.apply(end(state=GONE))
    await world.apply()
    assert (world.urls, world.why()) == ([URL], None)
    assert world.membership.drop(SOURCE) and world.urls == [URL]
    assert world.membership.drop(OTHER) and world.urls == []
    assert not world.membership.drop(OTHER)


async def test_an_endpoint_that_an_operator_dropped_joins_with_the_next_list() -> None:
    world = MembershipWorld()
    await world.apply(end())
    world.world.roster.drop(URL)
    await world.apply(end())
    assert world.urls == [URL]
    await world.world.roster.stop()


async def test_addresses_that_no_worker_has_are_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = MembershipWorld()
    await world.apply(end("http://169.254.169.254:1"), end())
    assert world.urls == [URL]
    assert "169.254.169.254 is not an address for a worker" in warnings(caplog)[0]
    await world.world.roster.stop()


async def test_endpoints_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_ENDPOINTS", 1)
    world = MembershipWorld()
    await world.apply(end(), end(TWO))
    assert (world.urls, warnings(caplog)) == ([URL], [f"Kubernetes {SOURCE}: 2 endpoints, using 1"])
    await world.world.roster.stop()
