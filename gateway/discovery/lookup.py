"""Single lookup of a URL that stands for several workers: for `kvgate check`."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.core.errors import ConfigError
from gateway.core.worker import Role
from gateway.discovery.dns import member_url, resolve
from gateway.discovery.kubernetes.client import ApiClient, ApiRequestFailed
from gateway.discovery.kubernetes.cluster import ClusterAccess
from gateway.discovery.kubernetes.endpoints import EndpointState
from gateway.discovery.kubernetes.single_list import listed_endpoints
from gateway.http.address import DNS, Address
from gateway.http.kubernetes_url import KubernetesUrl


@dataclass(frozen=True, slots=True)
class FoundWorkers:
    """Workers of one URL, each with its role where the lookup yields one, and the name in their certificates;
    `refusal` explains why there are none."""

    workers: Sequence[tuple[str, Role | None]] = ()
    server_name: str = ""
    refusal: str = ""


async def looked_up(
    url: str,
    cluster: Callable[[], ClusterAccess],
    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolve,
) -> FoundWorkers:
    """Look a `dns+` or `k8s://` URL up. Never raises for what is looked up."""
    found = await (_by_dns(url, resolve) if url.startswith(DNS) else _by_kubernetes(url, cluster))
    return found if found.workers or found.refusal else FoundWorkers(refusal="it has no workers now")


async def _by_dns(url: str, resolve: Callable[[str, int], Awaitable[Sequence[str]]]) -> FoundWorkers:
    address = Address.of(url.removeprefix(DNS))
    try:
        found = await resolve(address.host, address.port)
    except (OSError, UnicodeError) as exc:
        return FoundWorkers(refusal=f"cannot be resolved: {getattr(exc, 'strerror', None) or exc}")
    return FoundWorkers([(member_url(url, ip), None) for ip in found], address.host)


async def _by_kubernetes(url: str, cluster: Callable[[], ClusterAccess]) -> FoundWorkers:
    parsed = KubernetesUrl.of(url)
    try:
        client = ApiClient(cluster())
    except ConfigError as exc:
        return FoundWorkers(refusal=str(exc))
    try:
        found = await listed_endpoints(parsed, client)
    except (ApiRequestFailed, ValueError) as exc:
        return FoundWorkers(refusal=str(exc))
    finally:
        await client.close()
    ready = [each for each in found.values() if each.state is EndpointState.READY]
    return FoundWorkers([(each.url, each.role) for each in ready], parsed.server_name)
