"""Endpoints by a single list."""

import pytest

from gateway.discovery.kubernetes import reflector
from gateway.discovery.kubernetes.client import ApiRequestFailed
from gateway.discovery.kubernetes.single_list import listed_endpoints
from gateway.http.kubernetes_url import KubernetesUrl
from tests.support.kube_api import PODS, POOLS, SLICES, endpoint, endpoint_slice, pod, pool, served_api

BY_LABEL = KubernetesUrl.of("k8s://llm/pods?app=vllm&port=http")
SERVICE = KubernetesUrl.of("k8s://llm/service/vllm?scheme=https")
POOL = KubernetesUrl.of("k8s://llm/inferencepool/vllm")


async def test_each_kind_is_listed_over_all_pages() -> None:
    async with served_api(max_page=1) as (api, client):
        for number in (1, 2, 3):
            api.put(PODS, pod(f"p{number}", f"10.0.0.{number}"))
        api.put(SLICES, endpoint_slice("s", endpoint("10.0.0.9")))
        api.put(POOLS, pool(7))
        assert sorted(await listed_endpoints(BY_LABEL, client)) == [
            f"http://10.0.0.{i}:8000" for i in (1, 2, 3)
        ]
        assert list(await listed_endpoints(SERVICE, client)) == ["https://10.0.0.9:8000"]
        assert sorted(await listed_endpoints(POOL, client)) == [f"http://10.0.0.{i}:7" for i in (1, 2, 3)]


async def test_what_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_api() as (api, client):
        with pytest.raises(ValueError, match="there is no InferencePool vllm"):
            await listed_endpoints(POOL, client)
        api.put(SLICES, endpoint_slice("s", endpoint("a.example"), kind="FQDN"))
        with pytest.raises(ValueError, match="addresses of type FQDN"):
            await listed_endpoints(SERVICE, client)
        bad = pod("a")
        bad["status"]["podIP"] = 7
        api.put(PODS, bad)
        with pytest.raises(ValueError, match="unreadable list"):
            await listed_endpoints(BY_LABEL, client)
        api.put(PODS, pod("a"))
        api.put(PODS, pod("b"))
        monkeypatch.setattr(reflector, "MAX_OBJECTS", 1)
        with pytest.raises(ValueError, match="more than 1 objects"):
            await listed_endpoints(BY_LABEL, client)
        api.status = 403
        with pytest.raises(ApiRequestFailed, match="403"):
            await listed_endpoints(BY_LABEL, client)
