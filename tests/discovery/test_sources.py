"""Sources of workers: DNS names and Kubernetes objects behind one interface."""

from gateway.core.worker import Role
from gateway.discovery.sources import Sources
from tests.support.worlds.kube_sources import BY_LABEL, sources_world
from tests.support.worlds.named_workers import NAME, ONE, NamedWorld


async def test_a_source_goes_where_its_url_says() -> None:
    dns = NamedWorld()
    async with sources_world() as kube:
        sources = Sources(dns.resolver, kube.sources)
        assert sources.add(NAME, Role.PREFILL) and sources.add(BY_LABEL)
        assert not sources.add(NAME) and not sources.add(BY_LABEL)
        assert [(each.url, each.role) for each in sources] == [(NAME, Role.PREFILL), (BY_LABEL, None)]
        await dns.look()
        dns.resolver.has_looked.set()
        await sources.have_looked()
        assert sources.is_member(ONE) and not sources.is_member(NAME)
        assert (sources.refusal(NAME), sources.refusal(BY_LABEL)) == (None, None)
        assert NAME in repr(sources) and BY_LABEL in repr(sources)
        assert sources.drop(NAME) and sources.drop(BY_LABEL) and not sources.drop(BY_LABEL)
        assert list(sources) == []
    await dns.world.roster.stop()
