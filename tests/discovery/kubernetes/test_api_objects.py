"""Pages, events and statuses as the API sends them."""

import json
from typing import Any

import msgspec
import pytest

from gateway.discovery.kubernetes.api_objects import PODS, POOLS, SLICES, ApiStatus, WatchEvent, status_of
from tests.support.kube_api import endpoint, endpoint_slice, pod, pool


def versioned(found: dict[str, Any], version: str = "7") -> dict[str, Any]:
    found["metadata"]["resourceVersion"] = version
    return found


def line(kind: str, found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode()


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_an_object_comes_with_its_version(kind: str) -> None:
    event = PODS.event(line(kind, versioned(pod("a"))))
    assert event.object and (event.object.metadata.name, event.version) == ("a", "7")
    assert event.object.status.pod_ip == "127.0.0.1"
    slices = SLICES.event(line(kind, versioned(endpoint_slice("s", endpoint())))).object
    assert slices and slices.endpoints and slices.address_type == "IPv4"
    pools = POOLS.event(line(kind, versioned(pool(8000)))).object
    assert pools and pools.spec.target_ports and pools.spec.target_ports[0].number == 8000


def test_a_deletion_a_bookmark_and_an_error() -> None:
    deleted = PODS.event(line("DELETED", versioned(pod("a", uid="u")))).deleted
    assert deleted and (deleted.name, deleted.uid) == ("a", "u")
    assert PODS.event(line("BOOKMARK", {"metadata": {"resourceVersion": "9"}})) == WatchEvent("9")
    error = PODS.event(line("ERROR", {"message": "too old", "code": 410, "reason": "Expired"})).error
    assert error == ApiStatus("too old", "Expired", 410)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":[1]}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}',
        b'{"type":"DELETED","object":{"metadata":{"resourceVersion":"1"}}}',
        b'{"type":"LATER","object":{}}',
        b'{"type":"ADDED","obj',
        b'{"type":"ADDED","object":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_other_lines_are_errors(text: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError, RecursionError)):
        PODS.event(text)


def test_a_page_keeps_the_fields_that_count() -> None:
    body = {"metadata": {"resourceVersion": "5", "continue": "x"}, "items": [pod("a")], "kind": "PodList"}
    page = PODS.page(json.dumps(body).encode())
    assert (page.metadata.resource_version, page.metadata.next_page, len(page.items or ())) == ("5", "x", 1)
    empty = PODS.page(b'{"metadata":{"resourceVersion":"5"},"items":null}')
    assert (empty.items, empty.metadata.next_page) == (None, None)


def test_a_body_that_is_no_status_is_an_empty_one() -> None:
    assert status_of(b"<html>") == status_of(b'{"code":"x"}') == ApiStatus()
