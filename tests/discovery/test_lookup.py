"""Single lookups of URLs that stand for several workers."""

import socket
from collections.abc import Sequence
from functools import partial

from gateway.config.kubernetes import KubernetesSection
from gateway.core.worker import Role
from gateway.discovery.kubernetes.cluster import ClusterAccess, cluster_access
from gateway.discovery.lookup import FoundWorkers, looked_up
from tests.support.kube_api import PODS, KubeApi, pod

BY_LABEL = "k8s://llm/pods?app=vllm&port=http"
nowhere = partial(cluster_access, KubernetesSection(), {})


async def resolve(host: str, port: int) -> Sequence[str]:
    if host == "empty":
        return []
    if host == "unknown":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return ["10.0.0.1", "10.0.0.2"]


async def test_a_name_has_its_addresses() -> None:
    found = await looked_up("dns+https://engines:8000", nowhere, resolve)
    urls = [("https://10.0.0.1:8000", None), ("https://10.0.0.2:8000", None)]
    assert found == FoundWorkers(urls, "engines")
    unknown = await looked_up("dns+http://unknown:1", nowhere, resolve)
    assert unknown.refusal == "cannot be resolved: Name or service not known"
    assert (await looked_up("dns+http://empty:1", nowhere, resolve)).refusal == "it has no workers now"


async def test_kubernetes_has_its_pods_that_are_ready() -> None:
    api = await KubeApi().start()
    try:
        assert (await looked_up(BY_LABEL, lambda: ClusterAccess(api.url))).refusal == "it has no workers now"
        api.put(PODS, pod("a", "10.0.0.1", labels={"llm-d.ai/role": "decode"}))
        api.put(PODS, pod("b", "10.0.0.2", ready=False))
        found = await looked_up(BY_LABEL, lambda: ClusterAccess(api.url))
        assert found == FoundWorkers([("http://10.0.0.1:8000", Role.DECODE)])
        api.status = 401
        refused = await looked_up(BY_LABEL, lambda: ClusterAccess(api.url))
        assert refused.refusal == "401 refused with 401"
    finally:
        await api.stop()
    assert "KUBERNETES_SERVICE_HOST is not set" in (await looked_up(BY_LABEL, nowhere)).refusal
