"""Metrics of Kubernetes sources."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.discovery.kubernetes.metrics import KubernetesCollector
from tests.support.kube_api import PODS, pod
from tests.support.patience import until
from tests.support.worlds.kube_sources import BY_LABEL, sources_world


async def test_each_source_has_its_figures() -> None:
    async with sources_world() as kube:
        registry = CollectorRegistry()
        registry.register(KubernetesCollector(kube.sources))

        def page() -> str:
            return generate_latest(registry).decode()

        kube.api.put(PODS, pod("a", "10.0.0.1"))
        kube.sources.add(BY_LABEL)
        assert "kvgate_kube_synced_seconds{" not in page()
        await kube.sources.have_listed()
        await until(lambda: kube.api.num_watches == 1)
        assert f'kvgate_kube_synced_seconds{{source="{BY_LABEL}"}} ' in page()
        assert f'kvgate_kube_endpoints{{source="{BY_LABEL}"}} 1.0' in page()
        assert f'kvgate_kube_failures_total{{source="{BY_LABEL}"}} 0.0' in page()
        kube.api.compact(as_event=True)
        await until(
            lambda: (
                f'kvgate_kube_relists_total{{reason="expired",source="{BY_LABEL}"}} 1.0' in page()
                or f'kvgate_kube_relists_total{{source="{BY_LABEL}",reason="expired"}} 1.0' in page()
            )
        )
