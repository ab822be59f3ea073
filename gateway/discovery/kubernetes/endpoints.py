"""Endpoints that pods and EndpointSlices stand for. Pure.

| object                                          | state                                                    |
|-------------------------------------------------|----------------------------------------------------------|
| pod: deletionTimestamp; endpoint: terminating   | DRAINING: ends what it has, and leaves                   |
| pod: Ready; endpoint: ready, or `ready` is null | READY                                                    |
| pod or endpoint: not ready                      | NOT_READY: gets nothing new; its blocks stay known       |
| pod without address, or ended (Evicted)         | none                                                     |

An endpoint's uid is its pod's: another uid at the same address is another engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from gateway.core.worker import Role
from gateway.discovery.kubernetes.api_objects import EndpointSlice, Pod, SliceEndpoint, SlicePort
from gateway.http.kubernetes_url import port_number
from gateway.http.networks import address

ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
"""Values of the label `llm-d.ai/role`; others stand for both roles."""
ENDED = ("Succeeded", "Failed")
TLS_PROTOCOLS = ("https", "kubernetes.io/https")
H2C_PROTOCOLS = ("kubernetes.io/h2c", "grpc")
MAX_SHOWN = 5


class EndpointState(IntEnum):
    """States; where several objects name one address, the lowest counts."""

    READY = 0
    NOT_READY = 1
    DRAINING = 2


@dataclass(frozen=True, slots=True)
class KubernetesEndpoint:
    """Endpoint by its base URL; `uid` is its pod's, empty where it is not known."""

    url: str
    uid: str
    port: int
    state: EndpointState
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Endpoints of one object, and why there are none, or fewer."""

    endpoints: tuple[KubernetesEndpoint, ...] = ()
    refusal: str = ""


NOTHING = Found()


def canonical(text: str) -> str:
    """An address in its one form; empty for text that is none, or has a zone."""
    found = None if "%" in text else address(text)
    return "" if found is None else str(found)


def url_of(ip: str, port: int, *, is_tls: bool) -> str:
    scheme, host = "https" if is_tls else "http", f"[{ip}]" if ":" in ip else ip
    return f"{scheme}://{host}:{port}"


# pods --------------------------------------------------------------------------------------------


def pod_endpoints(pod: Pod, ports: Sequence[int], *, is_tls: bool = False) -> Found:
    """Endpoints of a pod, one for each port."""
    given, metadata = pod.status.pod_ip, pod.metadata
    if not given or pod.status.phase in ENDED:
        return NOTHING
    if not (ip := canonical(given)):
        return Found(refusal=f"pod {metadata.name}: '{given[:60]}' is not an address")
    role = ROLES.get(metadata.labels.role) if metadata.labels else None
    state = _pod_state(pod)
    return Found(
        tuple(
            KubernetesEndpoint(url_of(ip, port, is_tls=is_tls), metadata.uid, port, state, role)
            for port in dict.fromkeys(ports)
        )
    )


def pod_port(pod: Pod, port: str) -> int | None:
    """The number of a pod's port that is given by number or name; None if no container has the name."""
    if (number := port_number(port)) is not None:
        return number
    for container in pod.spec.containers or ():
        for each in container.ports or ():
            if each.name == port and 1 <= each.container_port <= 65535:
                return each.container_port
    return None


def selected_pod_endpoints(pod: Pod, port: str, *, is_tls: bool = False) -> Found:
    """Endpoint of a pod that was selected by labels."""
    if (number := pod_port(pod, port)) is None:
        return Found(refusal=f"pod {pod.metadata.name} has no container port named '{port}'")
    return pod_endpoints(pod, [number], is_tls=is_tls)


def active_ports(pod: Pod, ports: Sequence[int]) -> list[int]:
    """The ports of a pool that a pod serves: those of its annotation, all without one."""
    if (found := pod.metadata.annotations) is None:
        return list(ports)
    text = found.llm_d_active_ports if found.active_ports is None else found.active_ports
    if text is None:
        return list(ports)
    active = {each.strip() for each in text.split(",")}
    return [port for port in ports if str(port) in active]


def _pod_state(pod: Pod) -> EndpointState:
    if pod.metadata.deletion_timestamp:
        return EndpointState.DRAINING
    for condition in pod.status.conditions or ():
        if condition.type == "Ready":
            return EndpointState.READY if condition.status == "True" else EndpointState.NOT_READY
    return EndpointState.NOT_READY


# slices ------------------------------------------------------------------------------------------


def slice_endpoints(found: EndpointSlice, port: str, *, is_tls: bool = False) -> Found:
    """Endpoints of an EndpointSlice at a port given by name or number; without one, at its only port."""
    name = found.metadata.name
    if found.address_type not in ("IPv4", "IPv6"):
        kind = found.address_type[:40]
        return Found(
            refusal=f"EndpointSlice {name} has addresses of type {kind}; write dns+http:// for names"
        )
    if not found.endpoints:
        return NOTHING
    try:
        number, protocol = _slice_port(found.ports or (), port)
    except ValueError as exc:
        return Found(refusal=f"EndpointSlice {name} {exc}")
    is_tls = is_tls or protocol in TLS_PROTOCOLS
    every = found.endpoints
    good = tuple(_endpoint(each, ip, number, is_tls=is_tls) for each in every if (ip := _first(each)))
    bad = sum(1 for each in every if each.addresses and not _first(each))
    return Found(good, f"EndpointSlice {name} has {bad} endpoints that are not addresses" if bad else "")


def _first(endpoint: SliceEndpoint) -> str:
    """The address of an endpoint: the API lets no consumer use any but the first."""
    return canonical(endpoint.addresses[0]) if endpoint.addresses else ""


def _endpoint(endpoint: SliceEndpoint, ip: str, port: int, *, is_tls: bool) -> KubernetesEndpoint:
    conditions, uid = endpoint.conditions, endpoint.target_ref.uid if endpoint.target_ref else ""
    state = EndpointState.READY
    if conditions and conditions.terminating:
        state = EndpointState.DRAINING
    elif conditions and conditions.ready is False:
        state = EndpointState.NOT_READY
    return KubernetesEndpoint(url_of(ip, port, is_tls=is_tls), uid, port, state)


def _slice_port(ports: Sequence[SlicePort], wanted: str) -> tuple[int, str]:
    """Number and protocol of the wanted port. Raises ValueError with the reason."""
    usable = [(each.name or "", each.port, each.app_protocol or "") for each in ports if _is_tcp(each)]
    number = port_number(wanted) if wanted else None
    if number is not None and not usable:
        return number, ""
    chosen = [each for each in usable if wanted in (each[0], str(each[1]))] if wanted else usable
    if not wanted and len(usable) > 1:
        chosen = [each for each in usable if each[0] == "http"]
    if not chosen:
        names = ", ".join(f"{name or 'unnamed'} ({port})" for name, port, _ in usable[:MAX_SHOWN])
        lack = f"has no port '{wanted}'" if wanted else "needs a port to be named"
        raise ValueError(f"{lack}; its pods' ports: {names or 'none'}")
    _, port, protocol = chosen[0]
    assert port is not None
    if protocol in H2C_PROTOCOLS:
        raise ValueError(f"declares {protocol} at port {port}; workers are reached by HTTP/1.1")
    return port, protocol


def _is_tcp(port: SlicePort) -> bool:
    return port.protocol in (None, "", "TCP") and port.port is not None and 1 <= port.port <= 65535


# all together ------------------------------------------------------------------------------------


def merged(every: Iterable[Found]) -> dict[str, KubernetesEndpoint]:
    """Endpoints of all objects by URL: an address in several slices counts once, a pod with addresses of both
    families once (IPv4), and of two pods at one address the one that is ready."""
    by_url: dict[str, KubernetesEndpoint] = {}
    for endpoint in _each(every):
        known = by_url.get(endpoint.url)
        if known is None or (endpoint.state, endpoint.uid) < (known.state, known.uid):
            by_url[endpoint.url] = endpoint
    engines: dict[tuple[str, int], KubernetesEndpoint] = {}
    for endpoint in by_url.values():
        key = (endpoint.uid or endpoint.url, endpoint.port)
        known = engines.get(key)
        if known is None or _preference(endpoint) < _preference(known):
            engines[key] = endpoint
    return {endpoint.url: endpoint for endpoint in engines.values()}


def _each(every: Iterable[Found]) -> Iterator[KubernetesEndpoint]:
    for found in every:
        yield from found.endpoints


def _preference(endpoint: KubernetesEndpoint) -> tuple[bool, str]:
    return "//[" in endpoint.url, endpoint.url
