"""Engine ids that prefill workers' KV connectors report on a bootstrap server.

They are new with each start of an engine, and so requested whenever the worker is probed again.
"""

from collections.abc import Mapping
from dataclasses import replace

from gateway.core.kv_connector import KvConnector
from gateway.core.kv_events import DecodeError
from gateway.core.worker import Role
from gateway.discovery.declared import DeclaredSettings
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts
from gateway.http.address import Address
from gateway.http.url import netloc_of


async def with_engine_ids(
    facts: Facts, declared: DeclaredSettings, connectors: Mapping[str, KvConnector], probe: Probe
) -> Facts:
    """Add the engine ids of a prefill worker. Raises ProbeError while its connector is not ready."""
    worker = declared.workers_of(facts)[0]
    transfer = worker.transfer
    connector = connectors.get(transfer.connector) if transfer else None
    bootstrap = connector.bootstrap if connector else None
    if transfer is None or bootstrap is None or worker.role is Role.DECODE:
        return facts
    address = transfer.address or netloc_of(Address.of(facts.url).host, bootstrap.port)
    try:
        ids = bootstrap.engine_ids(await probe.elsewhere(f"http://{address}", bootstrap.path))
    except DecodeError as exc:
        raise ProbeError(f"http://{address}{bootstrap.path}: {exc}") from exc
    if not ids:
        raise ProbeError(f"http://{address}{bootstrap.path}: the engine has not registered its id there yet")
    return replace(facts, transfer=replace(transfer, address=address), engine_ids=ids)
