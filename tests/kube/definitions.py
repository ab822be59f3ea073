"""Definitions of the custom resources of other projects, as far as manifests of kvgate use them.

The fields of an InferencePool are those that kvgate reads and the chart writes; of the others the API server
takes any specification.
"""

from typing import Any

ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT = {"type": "string"}
_PORT = {
    "type": "object",
    "required": ["number"],
    "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}},
}
_POOL = {
    "type": "object",
    "required": ["selector", "targetPorts"],
    "properties": {
        "selector": {
            "type": "object",
            "required": ["matchLabels"],
            "properties": {"matchLabels": {"type": "object", "additionalProperties": _TEXT}},
        },
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": _PORT},
        "appProtocol": {"type": "string", "enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": _TEXT,
                "port": _PORT,
                "failureMode": {"type": "string", "enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}

CUSTOM: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "InferencePool": ("inference.networking.k8s.io", "v1", "Namespaced", _POOL),
    "ServiceMonitor": ("monitoring.coreos.com", "v1", "Namespaced", ANY),
    "PrometheusRule": ("monitoring.coreos.com", "v1", "Namespaced", ANY),
    "HTTPRoute": ("gateway.networking.k8s.io", "v1", "Namespaced", ANY),
    "Gateway": ("gateway.networking.k8s.io", "v1", "Namespaced", ANY),
    "GatewayClass": ("gateway.networking.k8s.io", "v1", "Cluster", ANY),
    "ScaledObject": ("keda.sh", "v1alpha1", "Namespaced", ANY),
    "ClientTrafficPolicy": ("gateway.envoyproxy.io", "v1alpha1", "Namespaced", ANY),
    "BackendTrafficPolicy": ("gateway.envoyproxy.io", "v1alpha1", "Namespaced", ANY),
    "EnvoyExtensionPolicy": ("gateway.envoyproxy.io", "v1alpha1", "Namespaced", ANY),
    "GCPBackendPolicy": ("networking.gke.io", "v1", "Namespaced", ANY),
    "HealthCheckPolicy": ("networking.gke.io", "v1", "Namespaced", ANY),
    "DestinationRule": ("networking.istio.io", "v1", "Namespaced", ANY),
}
"""Group, version, scope and specification of each kind."""


def plural(kind: str) -> str:
    """The name of a kind's collection."""
    lower = kind.lower()
    return lower[:-1] + "ies" if lower.endswith("y") else lower + ("es" if lower.endswith("s") else "s")


def definition(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    group, version, scope, spec = CUSTOM[kind]
    name = f"{plural(kind)}.{group}"
    shape = {"type": "object", "properties": {"spec": spec}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": shape}}
    names = {"kind": kind, "plural": plural(kind), "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {"group": group, "scope": scope, "names": names, "versions": [served]},
    }
