"""Queries of k8s:// URLs: paths and selectors as the API takes them."""

from gateway.discovery.kubernetes.client import ApiQuery
from gateway.discovery.kubernetes.queries import pods_query, pool_query, slices_query
from gateway.http.kubernetes_url import KubernetesUrl
from tests.support.kube_api import PODS, POOLS, SLICES


def test_each_kind_has_its_query() -> None:
    service = KubernetesUrl.of("k8s://llm/service/vllm:http")
    assert slices_query(service) == ApiQuery(SLICES, label_selector="kubernetes.io/service-name=vllm")
    assert pods_query("llm", "a=b,c=d") == ApiQuery(PODS, label_selector="a=b,c=d")
    pool = KubernetesUrl.of("k8s://llm/inferencepool/vllm")
    assert pool_query(pool) == ApiQuery(POOLS, field_selector="metadata.name=vllm")
