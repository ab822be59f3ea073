from typing import cast

import pytest

from engines import DEFAULT_CONNECTORS, KV_CONNECTORS
from gateway.config import load
from gateway.core.engine import ModelInfo
from gateway.core.worker import Transfer
from gateway.discovery.bootstrap import with_engine_ids
from gateway.discovery.declared import DeclaredSettings, declared_settings
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts

P = "http://10.0.0.1:8000"
MOONCAKE = Transfer("mooncake", "*:9000")


class FakeProbe:
    """Probe that answers with `body`."""

    def __init__(self, body: bytes = b"") -> None:
        self.body = body
        self.urls: list[str] = []

    async def elsewhere(self, url: str, path: str) -> bytes:
        self.urls.append(url + path)
        return self.body


def facts(transfer: Transfer | None = None, role: str | None = None) -> Facts:
    return Facts(P, "vllm", (ModelInfo("m"),), transfer=transfer, role=role)


def settings(**options: list[str]) -> DeclaredSettings:
    return declared_settings(load(options, environ={}), KV_CONNECTORS, DEFAULT_CONNECTORS)


async def asked_for(facts: Facts, declared: DeclaredSettings, probe: FakeProbe) -> Facts:
    return await with_engine_ids(facts, declared, KV_CONNECTORS, cast(Probe, probe))


async def test_the_engine_id_is_read_from_the_bootstrap_server() -> None:
    probe = FakeProbe(b'{"0": {"engine_id": "e0", "worker_addr": {}}, "1": {"engine_id": "e1"}}')
    found = await asked_for(facts(), settings(prefill=[P], connector=["mooncake"]), probe)
    assert probe.urls == ["http://10.0.0.1:8998/query"]
    assert (found.transfer, found.engine_ids) == (Transfer("mooncake", "10.0.0.1:8998"), {0: "e0", 1: "e1"})
    (worker,) = settings(prefill=[P], connector=["mooncake"]).workers_of(found)
    assert worker.transfer == Transfer("mooncake", "10.0.0.1:8998", "e0")


async def test_a_reported_bootstrap_address_is_used() -> None:
    probe = FakeProbe(b'{"0": {"engine_id": "e0"}}')
    await asked_for(facts(MOONCAKE, "prefill"), settings(), probe)
    assert probe.urls == ["http://10.0.0.1:9000/query"]


@pytest.mark.parametrize(
    ("known", "spec"),
    [
        (facts(), settings()),
        (facts(MOONCAKE, "decode"), settings()),
        (facts(Transfer("nixl"), "prefill"), settings()),
        (facts(), settings(decode=[P], connector=["mooncake"])),
    ],
    ids=["alone", "decode", "nixl", "declared to decode"],
)
async def test_other_workers_are_not_asked_for_an_engine_id(known: Facts, spec: DeclaredSettings) -> None:
    probe = FakeProbe()
    assert await asked_for(known, spec, probe) is known
    assert probe.urls == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "has not registered its id there yet"),
        (b"<html>", "http://10.0.0.1:9000/query: mooncake's bootstrap"),
    ],
)
async def test_a_worker_without_an_engine_id_is_waited_for(body: bytes, why: str) -> None:
    with pytest.raises(ProbeError, match=why):
        await asked_for(facts(MOONCAKE, "prefill"), settings(), FakeProbe(body))


async def test_the_bootstrap_server_of_an_ipv6_worker_has_a_url() -> None:
    probe, url = FakeProbe(b'{"0": {"engine_id": "e0", "worker_addr": {}}}'), "http://[fd00::1]:8000"
    known = Facts(url, "vllm", (ModelInfo("m"),))
    found = await asked_for(known, settings(prefill=[url], connector=["mooncake"]), probe)
    assert probe.urls == ["http://[fd00::1]:8998/query"] and found.transfer is not None
