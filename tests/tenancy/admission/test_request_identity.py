"""Identity of a request from headers and keys, and the networks that may declare it."""

from hashlib import sha256

import pytest

from gateway.core.errors import ConfigError
from gateway.http.messages import Header
from gateway.http.networks import Trusted
from gateway.tenancy.admission.request_identity import (
    DeclaredIdentity,
    HeaderNames,
    declared_identity,
    objective_priority,
    tenant_of_key,
)

NAMES = HeaderNames(b"x-kvgate-tenant", b"x-kvgate-priority", b"x-kvgate-slo-ttft-ms")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"host", b"a"), (b"x-kvgate-other", b"1")], None),
        ([(b"x-kvgate-tenant", b" acme ")], DeclaredIdentity("acme", None, None)),
        ([(b"x-kvgate-tenant", b"")], DeclaredIdentity(None, None, None)),
        ([(b"x-kvgate-tenant", b"a\x00b")], DeclaredIdentity(None, None, None)),
        ([(b"x-kvgate-tenant", b"x" * 100)], DeclaredIdentity("x" * 64, None, None)),
        ([(b"x-kvgate-priority", b"-5")], DeclaredIdentity(None, -5, None)),
        ([(b"x-kvgate-priority", b"high")], DeclaredIdentity(None, None, None)),
        ([(b"x-kvgate-priority", b"9" * 30)], DeclaredIdentity(None, None, None)),
        ([(b"x-kvgate-slo-ttft-ms", b"1500")], DeclaredIdentity(None, None, 1.5)),
        ([(b"x-kvgate-slo-ttft-ms", b"0")], DeclaredIdentity(None, None, None)),
        ([(b"x-kvgate-slo-ttft-ms", b"-1")], DeclaredIdentity(None, None, None)),
    ],
)
def test_identity_headers_are_parsed(headers: list[Header], expected: DeclaredIdentity | None) -> None:
    assert declared_identity(headers, NAMES) == expected


def test_objectives_count_up_and_priorities_down() -> None:
    old, new = (b"x-gateway-inference-objective", b"chat"), (b"x-llm-d-inference-objective", b"batch")
    objectives = {"chat": 10, "batch": -5}
    assert objective_priority([old], objectives) == -10
    assert objective_priority([old, new], objectives) == 5  # the new name goes first
    assert objective_priority([(new[0], b"\xff")], objectives) == 0
    assert objective_priority([(b"host", b"a"), (new[0], b"")], objectives) is None


def test_a_key_is_known_by_its_hash_however_it_is_sent() -> None:
    name = f"key-{sha256(b'sk-secret').hexdigest()[:10]}"
    assert tenant_of_key([(b"authorization", b"Bearer sk-secret")]) == name
    assert tenant_of_key([(b"accept", b"*"), (b"authorization", b"bearer  sk-secret ")]) == name
    assert tenant_of_key([(b"x-api-key", b"sk-secret")]) == name
    assert tenant_of_key([(b"authorization", b"Bearer other")]) != name
    assert tenant_of_key([(b"authorization", b"Basic sk-secret")]) != name
    assert tenant_of_key([(b"authorization", b"Bearer "), (b"x-api-key", b"sk-secret")]) == name
    assert tenant_of_key([(b"x-api-key", b""), (b"authorization", b"Bearer sk-secret")]) == name
    assert tenant_of_key([]) == tenant_of_key([(b"authorization", b"Bearer ")]) == "anonymous"


@pytest.mark.parametrize(
    ("networks", "peer", "is_trusted"),
    [
        ([], "127.0.0.1", False),
        ([], "", False),
        (["127.0.0.0/8"], "127.0.0.1", True),
        (["127.0.0.0/8"], "::ffff:127.0.0.1", True),
        (["127.0.0.0/8"], "10.0.0.1", False),
        (["127.0.0.0/8"], "", False),
        (["10.1.2.3"], "10.1.2.3", True),
        (["::1"], "::1", True),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["unix"], "", True),
        (["unix"], "127.0.0.1", False),
        (["unix", "10.0.0.0/8"], None, False),
        (["10.0.0.0/8"], "no address", False),
    ],
)
def test_trusted_networks(networks: list[str], peer: str | None, is_trusted: bool) -> None:
    trusted = Trusted(networks, "--trust-headers-from")
    assert trusted.trusts(peer) is trusted.trusts(peer) is is_trusted
    assert bool(trusted) is bool(networks)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "here", "*", ""])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--trust-headers-from"):
        Trusted([text], "--trust-headers-from")
