"""Table of endpoints: which changes of objects change endpoints."""

from functools import partial

from gateway.discovery.kubernetes.api_objects import Pod
from gateway.discovery.kubernetes.endpoints import selected_pod_endpoints
from gateway.discovery.kubernetes.reflector import ObjectChange
from gateway.discovery.kubernetes.tables import EndpointTable
from tests.discovery.kubernetes.reading import as_pod
from tests.support.kube_api import pod


def test_only_changes_of_endpoints_count() -> None:
    table = EndpointTable[Pod](partial(selected_pod_endpoints, port="http"))
    one, two = as_pod(pod("one", "10.0.0.1")), as_pod(pod("two", "10.0.0.2"))
    assert table.replace({"one": one, "two": two})
    assert not table.replace({"one": one, "two": two})
    assert sorted(table.endpoints) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    relabelled = as_pod(pod("one", "10.0.0.1", labels={"new": "x"}))
    assert not table.change(ObjectChange("one", relabelled))
    assert table.change(ObjectChange("one", as_pod(pod("one", "10.0.0.1", ready=False))))
    assert table.change(ObjectChange("two", None)) and not table.change(ObjectChange("two", None))
    assert list(table.endpoints) == ["http://10.0.0.1:8000"]
    assert table.replace({}) and table.endpoints == {}


def test_a_refusal_is_that_of_an_object() -> None:
    table = EndpointTable[Pod](partial(selected_pod_endpoints, port="grpc"))
    assert table.refusal == ""
    assert table.change(ObjectChange("one", as_pod(pod("one"))))
    assert table.refusal == "pod one has no container port named 'grpc'"
