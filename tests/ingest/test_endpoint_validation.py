"""Event endpoints that kvgate connects to, among those that an engine reports."""

from pathlib import Path

import pytest

from gateway.http.networks import Reachable
from gateway.ingest.endpoint_validation import place_of, reachable_endpoint, tcp_address
from gateway.upstream.access import FleetAccess


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        ("tcp://*:5557", "tcp://engine:5557"),
        ("tcp://127.0.0.1:5557*", "tcp://engine:5557"),
        ("tcp://ENGINE:1", "tcp://ENGINE:1"),
        ("tcp://10.0.0.9:1", "tcp://10.0.0.9:1"),
        ("tcp://[fd00::1]:1", "tcp://[fd00::1]:1"),
    ],
)
def test_an_ordinary_endpoint_is_allowed(endpoint: str, where: str) -> None:
    assert reachable_endpoint(endpoint, "engine", FleetAccess()) == where


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://169.254.169.254:80", "metadata service"),
        ("tcp://100.100.100.200:80", "metadata service"),
        ("tcp://[fe80::1%eth0]:80", "link-local"),
        ("tcp://redis.internal:6379", "cannot be resolved here"),
        ("tcp://10.0.0.1;10.0.0.2:80", "neither tcp"),
        ("udp://10.0.0.1:80", "neither tcp"),
        ("inproc://x", "neither tcp"),
        ("pgm://eth0;239.192.1.1:5555", "neither tcp"),
        ("ipc:///run/docker.sock", "no directory of --worker-networks"),
        ("ipc://@abstract", "no directory of --worker-networks"),
    ],
)
def test_a_forbidden_endpoint_is_rejected(endpoint: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reachable_endpoint(endpoint, "engine", FleetAccess())


def test_networks_and_directories_of_the_operator_apply(tmp_path: Path) -> None:
    access = FleetAccess(reachable=Reachable(["10.0.0.0/8"]), socket_dirs=[str(tmp_path)])
    assert reachable_endpoint("tcp://10.1.1.1:1", "w", access) == "tcp://10.1.1.1:1"
    assert reachable_endpoint(f"ipc://{tmp_path}/kv", "w", access) == f"ipc://{tmp_path}/kv"
    with pytest.raises(ValueError, match="in none of --worker-networks"):
        reachable_endpoint("tcp://11.0.0.1:1", "w", access)
    with pytest.raises(ValueError, match="no directory of --worker-networks"):
        reachable_endpoint(f"ipc://{tmp_path}/../kv", "w", access)


def test_an_agent_trusts_its_own_engine() -> None:
    assert reachable_endpoint("ipc://kv", "w", None) == "ipc://kv"


def test_an_endpoint_is_resolved_to_its_host() -> None:
    assert tcp_address("tcp://[::1]:5") == ("::1", 5)
    assert tcp_address("tcp://w:5") == ("w", 5)
    assert tcp_address("ipc://w") is None


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5557"),
        ("tcp://Engine-1:5557", "tcp://engine-1:5557"),
        ("tcp://localhost:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::1]:5557", "tcp://127.0.0.1:5557"),
        ("ipc:///run/kv", "ipc:///run/kv"),
    ],
)
def test_one_socket_is_one_place(endpoint: str, place: str) -> None:
    assert place_of(endpoint) == place
