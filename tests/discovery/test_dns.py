"""DNS names with workers as their addresses, looked up by the test's own resolver."""

import socket

import pytest

from gateway.core.worker import Role
from gateway.discovery import dns as module
from gateway.discovery.dns import NO_LONGER_NAMED, member_url, resolve
from tests.support.worlds.lifecycle import warnings
from tests.support.worlds.named_workers import NAME, ONE, TWO, NamedWorld


async def test_each_address_is_a_worker_with_the_options_of_its_name() -> None:
    world = NamedWorld()
    assert world.resolver.add(NAME, Role.PREFILL)
    assert not world.resolver.add(NAME)
    await world.look()
    assert (world.urls, world.asked) == ([ONE, TWO], [("engines", 8000)])
    assert world.inherited == [(ONE, NAME, "engines"), (TWO, NAME, "engines")]
    assert world.world.roster.declared.roles == {ONE: Role.PREFILL, TWO: Role.PREFILL}
    assert (world.resolver.is_member(ONE), world.resolver.is_member(NAME)) == (True, False)
    await world.world.roster.stop()


async def test_an_address_no_longer_listed_drains_and_is_dropped() -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    await world.look("10.0.0.1", "10.0.0.3")
    assert world.urls == [ONE, TWO, "https://10.0.0.3:8000/v"]
    assert (world.draining, world.lifecycle.why(TWO)) == ([TWO], NO_LONGER_NAMED)
    assert world.lifecycle.to_drop(world.workers) == [TWO]
    world.world.roster.drop(TWO)
    world.lifecycle.dropped(TWO, ())
    await world.look()
    assert (world.urls, world.draining) == ([ONE, "https://10.0.0.3:8000/v"], [])
    await world.world.roster.stop()


async def test_an_address_listed_again_stops_draining() -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    await world.look("10.0.0.1")
    await world.look("10.0.0.1", "10.0.0.2")
    assert (world.urls, world.draining) == ([ONE, TWO], [])
    await world.world.roster.stop()


async def test_a_drain_by_an_operator_survives_a_lookup() -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    world.lifecycle.drain(TWO, (), "asked for")
    await world.look()
    assert world.draining == [TWO]
    await world.world.roster.stop()


async def test_a_name_that_cannot_be_resolved_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    world.answer = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    for _ in range(3):
        await world.look()
    assert (world.urls, world.draining) == ([ONE, TWO], [])
    words = "cannot be resolved: Temporary failure in name resolution"
    assert world.resolver.names[NAME].last_error == words
    assert warnings(caplog) == [f"DNS name {NAME}: {words}"]
    await world.look("10.0.0.1")
    assert world.resolver.names[NAME].last_error is None
    await world.world.roster.stop()


async def test_an_invalid_name_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    world.answer = UnicodeError("label too long")
    await world.look()
    assert world.urls == [ONE, TWO]
    assert f"DNS name {NAME}: cannot be resolved: label too long" in warnings(caplog)
    await world.world.roster.stop()


async def test_addresses_beyond_the_bound_are_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ADDRESSES", 2)
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look("10.0.0.3", "10.0.0.2", "10.0.0.1")
    await world.look("10.0.0.2", "10.0.0.1", "10.0.0.3")
    assert world.urls == [ONE, TWO] and not world.draining
    assert warnings(caplog).count(f"DNS name {NAME}: has 3 addresses, using only 2") == 1
    await world.world.roster.stop()


async def test_a_forbidden_address_is_left_out_and_named() -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look("10.0.0.1", "169.254.169.254")
    assert world.urls == [ONE]
    assert "169.254.169.254 is not an address for a worker" in str(world.resolver.names[NAME].last_error)
    await world.look("169.254.169.254")
    assert (world.urls, world.draining) == ([ONE], [])
    await world.world.roster.stop()


async def test_a_dropped_name_takes_its_workers_with_it() -> None:
    world = NamedWorld()
    world.resolver.add(NAME)
    await world.look()
    assert world.resolver.drop(NAME)
    assert not world.resolver.drop(NAME)
    assert (world.urls, repr(world.resolver)) == ([], "Resolver([])")


def test_addresses_become_urls() -> None:
    assert member_url("dns+http://w:1", "fd00::1") == "http://[fd00::1]:1"
    assert member_url("dns+https://w/base", "10.0.0.1") == "https://10.0.0.1:443/base"


async def test_the_system_resolver_answers() -> None:
    assert "127.0.0.1" in await resolve("localhost", 80)
    with pytest.raises(OSError, match=r"\[Errno -?\d+\]"):
        await resolve("no-such-host.invalid", 80)
