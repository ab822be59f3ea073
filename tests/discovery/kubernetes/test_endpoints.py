"""Endpoints of pods and slices: tables of objects, and what follows from them."""

from typing import Any

import pytest

from gateway.core.worker import Role
from gateway.discovery.kubernetes.endpoints import (
    EndpointState,
    Found,
    KubernetesEndpoint,
    active_ports,
    merged,
    pod_endpoints,
    selected_pod_endpoints,
    slice_endpoints,
)
from tests.discovery.kubernetes.reading import as_pod, as_slice
from tests.support.kube_api import endpoint, endpoint_slice, pod

READY, NOT_READY, DRAINING = EndpointState.READY, EndpointState.NOT_READY, EndpointState.DRAINING

PODS: list[tuple[dict[str, Any], list[EndpointState]]] = [
    ({}, [READY]),
    ({"ready": False}, [NOT_READY]),
    ({"deleted": True}, [DRAINING]),
    ({"deleted": True, "ready": False}, [DRAINING]),
    ({"phase": "Pending", "ready": False}, [NOT_READY]),
    ({"phase": "Failed", "reason": "Evicted"}, []),
    ({"phase": "Succeeded"}, []),
]


@pytest.mark.parametrize(("changes", "states"), PODS)
def test_the_state_of_a_pod(changes: dict[str, Any], states: list[EndpointState]) -> None:
    found = pod_endpoints(as_pod(pod("a", "10.0.0.1", **changes)), [8000])
    assert [each.state for each in found.endpoints] == states
    assert not found.refusal


def test_a_pod_without_conditions_is_not_ready() -> None:
    bare = pod("a", "10.0.0.1")
    bare["status"]["conditions"] = None
    assert pod_endpoints(as_pod(bare), [1]).endpoints[0].state is NOT_READY


@pytest.mark.parametrize("ip", [None, ""])
def test_a_pod_without_an_address_has_no_endpoint(ip: str | None) -> None:
    found = pod("a")
    found["status"]["podIP"] = ip
    assert pod_endpoints(as_pod(found), [1]) == Found()


@pytest.mark.parametrize("ip", ["evil/../x", "fe80::1%eth0", "10.0.0.1 ", "010.0.0.1", "2852039166"])
def test_a_pod_with_a_bad_address_is_refused_with_the_reason(ip: str) -> None:
    assert pod_endpoints(as_pod(pod("a", ip)), [1]) == Found(refusal=f"pod a: '{ip}' is not an address")


@pytest.mark.parametrize(
    ("ip", "is_tls", "url"),
    [
        ("10.0.0.1", False, "http://10.0.0.1:8000"),
        ("fd00::1", False, "http://[fd00::1]:8000"),
        ("10.0.0.1", True, "https://10.0.0.1:8000"),
        ("FD00:0::1", False, "http://[fd00::1]:8000"),
        ("::ffff:10.0.0.1", False, "http://10.0.0.1:8000"),
    ],
)
def test_the_url_of_a_pod(ip: str, is_tls: bool, url: str) -> None:
    (found,) = pod_endpoints(as_pod(pod("a", ip)), [8000], is_tls=is_tls).endpoints
    assert found == KubernetesEndpoint(url, "uid-a", 8000, READY)


@pytest.mark.parametrize(
    ("label", "role"),
    [
        ("prefill", Role.PREFILL),
        ("decode", Role.DECODE),
        ("both", None),
        ("prefill-decode", None),
        ("", None),
    ],
)
def test_the_role_of_a_pod_is_its_label(label: str, role: Role | None) -> None:
    (found,) = pod_endpoints(as_pod(pod("a", labels={"llm-d.ai/role": label})), [1]).endpoints
    assert found.role is role


@pytest.mark.parametrize(("port", "number"), [("8000", 8000), ("http", 8123), ("9000", 9000)])
def test_the_port_of_selected_pods_is_a_number_or_a_name(port: str, number: int) -> None:
    (found,) = selected_pod_endpoints(as_pod(pod("a", port=8123)), port).endpoints
    assert found.port == number


def test_pods_in_the_network_of_one_node_differ_by_their_ports() -> None:
    both = [pod("a", "10.0.0.9", port=8000), pod("b", "10.0.0.9", port=8001)]
    found = merged(selected_pod_endpoints(as_pod(each), "http") for each in both)
    assert {each.url: each.uid for each in found.values()} == {
        "http://10.0.0.9:8000": "uid-a",
        "http://10.0.0.9:8001": "uid-b",
    }


def test_a_pod_without_the_named_port_is_refused_with_the_reason() -> None:
    found = selected_pod_endpoints(as_pod(pod("a")), "grpc")
    assert found == Found(refusal="pod a has no container port named 'grpc'")


@pytest.mark.parametrize("name", ["inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"])
@pytest.mark.parametrize(
    ("text", "ports"),
    [("8000, 8002", [8000, 8002]), ("", []), ("8000,8000,x,-1", [8000]), ("9", [])],
)
def test_active_ports_are_a_part_of_the_pool_s(name: str, text: str, ports: list[int]) -> None:
    annotated = as_pod(pod("a", annotations={name: text}))
    assert active_ports(annotated, [8000, 8001, 8002]) == ports
    assert active_ports(as_pod(pod("a")), [8000, 8001]) == [8000, 8001]


CONDITIONS: list[tuple[dict[str, bool | None], EndpointState]] = [
    ({}, READY),
    ({"ready": None}, READY),
    ({"ready": True}, READY),
    ({"ready": False}, NOT_READY),
    ({"ready": False, "serving": True}, NOT_READY),
    ({"ready": False, "serving": True, "terminating": True}, DRAINING),
    ({"ready": None, "serving": False, "terminating": True}, DRAINING),
    ({"ready": True, "serving": None, "terminating": None}, READY),
]


@pytest.mark.parametrize(("conditions", "state"), CONDITIONS)
def test_the_state_of_an_endpoint(conditions: dict[str, bool | None], state: EndpointState) -> None:
    (found,) = slice_endpoints(as_slice(endpoint_slice("s", endpoint(**conditions))), "").endpoints
    assert found.state is state


ONE = {"name": "http", "port": 8000, "protocol": "TCP"}
TWO = {"name": "metrics", "port": 9000}
PORTS: list[tuple[str, list[dict[str, Any]] | None, int | str]] = [
    ("", [ONE], 8000),
    ("", [ONE, TWO], 8000),
    ("metrics", [ONE, TWO], 9000),
    ("9000", [ONE, TWO], 9000),
    ("", [{"name": "", "port": 1}], 1),
    ("", [{"name": None, "port": 1, "protocol": None}], 1),
    ("8000", None, 8000),
    ("8000", [], 8000),
    ("", None, "needs a port to be named; its pods' ports: none"),
    ("http", [], "has no port 'http'; its pods' ports: none"),
    ("80", [ONE], "has no port '80'; its pods' ports: http (8000)"),
    ("", [TWO, {"port": 1}], "needs a port to be named; its pods' ports: metrics (9000), unnamed (1)"),
    ("", [{"name": "dns", "port": 53, "protocol": "UDP"}], "needs a port to be named; its pods' ports: none"),
    ("", [{"name": "http", "port": None}], "needs a port to be named; its pods' ports: none"),
    ("", [{"name": "http", "port": 70000}], "needs a port to be named; its pods' ports: none"),
    (
        "",
        [ONE | {"appProtocol": "kubernetes.io/h2c"}],
        "declares kubernetes.io/h2c at port 8000; workers are",
    ),
]


@pytest.mark.parametrize(("wanted", "ports", "result"), PORTS)
def test_the_port_of_a_slice(wanted: str, ports: list[dict[str, Any]] | None, result: int | str) -> None:
    found = slice_endpoints(as_slice(endpoint_slice("s", endpoint(), ports=ports)), wanted)
    if isinstance(result, int):
        assert [each.port for each in found.endpoints] == [result] and not found.refusal
    else:
        assert not found.endpoints and found.refusal.startswith(f"EndpointSlice s {result}")


def test_a_slice_of_names_is_refused() -> None:
    found = slice_endpoints(as_slice(endpoint_slice("s", endpoint("a.example"), kind="FQDN")), "")
    assert found == Found(refusal="EndpointSlice s has addresses of type FQDN; write dns+http:// for names")


def test_null_lists_and_addresses_are_no_endpoints() -> None:
    assert slice_endpoints(as_slice(endpoint_slice("s", ports=None)), "") == Found()
    for addresses in (None, []):
        found = slice_endpoints(as_slice(endpoint_slice("s", endpoint() | {"addresses": addresses})), "")
        assert found == Found()
    bad = slice_endpoints(as_slice(endpoint_slice("s", endpoint("x y"), endpoint("10.0.0.1"))), "")
    assert [each.url for each in bad.endpoints] == ["http://10.0.0.1:8000"]
    assert bad.refusal == "EndpointSlice s has 1 endpoints that are not addresses"


def test_an_https_port_of_a_slice() -> None:
    ports = [ONE | {"appProtocol": "https"}]
    (found,) = slice_endpoints(as_slice(endpoint_slice("s", endpoint(uid=None), ports=ports)), "").endpoints
    assert (found.url, found.uid) == ("https://127.0.0.1:8000", "")


def ends(*given: tuple[str, str, EndpointState]) -> Found:
    return Found(tuple(KubernetesEndpoint(f"http://{ip}:1", uid, 1, state) for ip, uid, state in given))


MERGED: list[tuple[list[Found], list[tuple[str, str, EndpointState]]]] = [
    ([ends(("10.0.0.1", "a", READY)), ends(("10.0.0.1", "a", READY))], [("10.0.0.1", "a", READY)]),
    ([ends(("10.0.0.1", "a", NOT_READY)), ends(("10.0.0.1", "a", READY))], [("10.0.0.1", "a", READY)]),
    ([ends(("10.0.0.1", "a", DRAINING)), ends(("10.0.0.1", "b", READY))], [("10.0.0.1", "b", READY)]),
    ([ends(("10.0.0.1", "b", READY)), ends(("10.0.0.1", "a", READY))], [("10.0.0.1", "a", READY)]),
    ([ends(("[fd00::1]", "a", READY)), ends(("10.0.0.1", "a", READY))], [("10.0.0.1", "a", READY)]),
    (
        [ends(("[fd00::1]", "", READY)), ends(("10.0.0.1", "", READY))],
        [("[fd00::1]", "", READY), ("10.0.0.1", "", READY)],
    ),
    ([], []),
]


@pytest.mark.parametrize(("every", "expected"), MERGED)
def test_endpoints_of_several_objects(
    every: list[Found], expected: list[tuple[str, str, EndpointState]]
) -> None:
    assert list(merged(every).values()) == list(ends(*expected).endpoints)
