"""Queries for the objects behind a k8s:// URL."""

from gateway.discovery.kubernetes.client import ApiQuery
from gateway.http.kubernetes_url import KubernetesUrl


def slices_query(service: KubernetesUrl) -> ApiQuery:
    """Query for the EndpointSlices of a Service."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
    return ApiQuery(path, label_selector=f"kubernetes.io/service-name={service.name}")


def pods_query(namespace: str, selector: str) -> ApiQuery:
    return ApiQuery(f"/api/v1/namespaces/{namespace}/pods", label_selector=selector)


def pool_query(pool: KubernetesUrl) -> ApiQuery:
    """Query for one InferencePool: rights for it alone are enough."""
    path = f"/apis/inference.networking.k8s.io/v1/namespaces/{pool.namespace}/inferencepools"
    return ApiQuery(path, field_selector=f"metadata.name={pool.name}")


POOL_OBJECT_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""API groups of InferenceObjective and InferenceModelRewrite, the older one last."""


def pool_object_queries(namespace: str, resource: str) -> list[ApiQuery]:
    """Queries for all objects of such a resource, in each of its groups."""
    return [
        ApiQuery(f"/apis/{group}/v1alpha2/namespaces/{namespace}/{resource}") for group in POOL_OBJECT_GROUPS
    ]
