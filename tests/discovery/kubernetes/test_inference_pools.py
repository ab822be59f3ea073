"""InferencePools: their pods and ports, and those that their definition would not allow."""

import pytest

from gateway.discovery.kubernetes.inference_pools import PoolRule, pool_rule
from tests.discovery.kubernetes.reading import as_pod, as_pool
from tests.support.kube_api import pod, pool


def test_a_pool_selects_pods_and_ports() -> None:
    rule = pool_rule(as_pool(pool(8000, 8001, 8000, labels={"b": "2", "a": "1"})))
    assert rule == PoolRule("a=1,b=2", (8000, 8001))
    urls = [each.url for each in rule.endpoints(as_pod(pod("a", "10.0.0.1"))).endpoints]
    assert urls == ["http://10.0.0.1:8000", "http://10.0.0.1:8001"]
    some = as_pod(pod("a", "10.0.0.1", annotations={"llm-d.ai/active-ports": "8001"}))
    assert [each.port for each in rule.endpoints(some).endpoints] == [8001]


def test_a_pool_may_have_eight_ports_and_https() -> None:
    assert len(pool_rule(as_pool(pool(*range(1, 9)))).ports) == 8
    assert pool_rule(as_pool(pool(1, protocol="https"))).is_tls
    assert pool_rule(as_pool(pool(1, protocol="http")), is_tls=True).is_tls


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pool(), "has no target ports"),
        (pool(*range(1, 10)), "has 9 target ports; 8 are the most"),
        (pool(70000), "70000 is not a port"),
        (pool(1, labels=None), "it has no matchLabels"),
        (pool(1, labels={}), "it has no matchLabels"),
        (pool(1, protocol="kubernetes.io/h2c"), "declares kubernetes.io/h2c"),
    ],
)
def test_other_pools_are_refused_with_the_reason(found: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pool_rule(as_pool(found))
