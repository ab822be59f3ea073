"""InferencePools (inference.networking.k8s.io/v1): the pods that a pool selects, its target ports. Pure."""

from dataclasses import dataclass

from gateway.discovery.kubernetes.api_objects import InferencePool, Pod
from gateway.discovery.kubernetes.endpoints import (
    H2C_PROTOCOLS,
    TLS_PROTOCOLS,
    Found,
    active_ports,
    pod_endpoints,
)

MAX_TARGET_PORTS = 8
"""Most target ports of a pool, by its definition: one for each data-parallel rank of a pod."""


@dataclass(frozen=True, slots=True)
class PoolRule:
    """Pods and ports of a pool; `selector` is as the API takes it."""

    selector: str
    ports: tuple[int, ...]
    is_tls: bool = False

    def endpoints(self, pod: Pod) -> Found:
        return pod_endpoints(pod, active_ports(pod, self.ports), is_tls=self.is_tls)


def pool_rule(pool: InferencePool, *, is_tls: bool = False) -> PoolRule:
    """Read a pool. Raises ValueError for one that its definition would not allow."""
    spec, name = pool.spec, pool.metadata.name
    labels = spec.selector.match_labels or {}
    ports = tuple(dict.fromkeys(each.number for each in spec.target_ports or ()))
    if not labels:
        raise ValueError(f"InferencePool {name} selects no pods: it has no matchLabels")
    if not ports:
        raise ValueError(f"InferencePool {name} has no target ports")
    if len(ports) > MAX_TARGET_PORTS:
        raise ValueError(
            f"InferencePool {name} has {len(ports)} target ports; {MAX_TARGET_PORTS} are the most"
        )
    if bad := [port for port in ports if not 1 <= port <= 65535]:
        raise ValueError(f"InferencePool {name}: {bad[0]} is not a port")
    if spec.app_protocol in H2C_PROTOCOLS:
        raise ValueError(
            f"InferencePool {name} declares {spec.app_protocol}; workers are reached by HTTP/1.1"
        )
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return PoolRule(selector, ports, is_tls or spec.app_protocol in TLS_PROTOCOLS)
