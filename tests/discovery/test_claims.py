"""Foreign names in the event endpoints that an engine reports."""

import asyncio

import pytest

from gateway.core.engine import EventSource
from gateway.discovery.claims import with_addresses
from gateway.discovery.probed import Facts
from gateway.http.networks import Reachable

ADDRESSES = {
    "other": ["10.0.0.7"],
    "rebound": ["10.0.0.7", "169.254.169.254"],
    "six": ["fd00::7"],
}


async def resolve(host: str, port: int) -> list[str]:
    if host not in ADDRESSES:
        raise OSError(-2, "Name or service not known")
    return ADDRESSES[host]


def settled(endpoint: str, replay: str | None = None) -> EventSource:
    facts = Facts("http://w:8000", "vllm", (), sources=(EventSource(0, endpoint, replay),))
    made = asyncio.run(with_addresses(facts, Reachable(), resolve))
    assert made.sources is not None
    return made.sources[0]


@pytest.mark.parametrize(
    ("endpoint", "kept"),
    [
        ("tcp://*:1", "tcp://*:1"),
        ("tcp://W:1", "tcp://W:1"),
        ("tcp://10.0.0.1:1", "tcp://10.0.0.1:1"),
        ("tcp://other:1", "tcp://10.0.0.7:1"),
        ("tcp://six:1", "tcp://[fd00::7]:1"),
        ("tcp://rebound:1", "tcp://169.254.169.254:1"),  # rejected later, with the reason
        ("tcp://unknown:1", "tcp://unknown:1"),
        ("ipc:///x", "ipc:///x"),
        ("/poll", "/poll"),
    ],
)
def test_a_foreign_name_is_replaced_by_its_checked_address(endpoint: str, kept: str) -> None:
    assert settled(endpoint).endpoint == kept


def test_a_foreign_name_of_a_replay_endpoint_is_replaced() -> None:
    assert settled("tcp://*:1", "tcp://other:2").replay_endpoint == "tcp://10.0.0.7:2"


def test_facts_without_sources_are_unchanged() -> None:
    facts = Facts("http://w:8000", "vllm", ())
    assert asyncio.run(with_addresses(facts, Reachable(), resolve)) is facts
