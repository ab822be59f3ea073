"""Bytes of an API server, or of what answers in its place: lines and pages, cut, changed and huge."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery.kubernetes.api_objects import (
    OBJECTIVES,
    PODS,
    POOLS,
    REWRITES,
    SLICES,
    Codec,
    EndpointSlice,
    InferencePool,
    Pod,
)
from gateway.discovery.kubernetes.client import MAX_LINE_BYTES, ApiRequestFailed, lines
from gateway.discovery.kubernetes.endpoints import Found, merged, selected_pod_endpoints, slice_endpoints
from gateway.discovery.kubernetes.inference_objects import model_rewrites, priorities
from gateway.discovery.kubernetes.inference_pools import pool_rule
from gateway.discovery.kubernetes.reflector import MAX_OBJECTS, Reflector
from gateway.discovery.kubernetes.tables import EndpointTable
from gateway.discovery.kubernetes.watch import UNREADABLE
from tests.support.kube_api import (
    endpoint,
    endpoint_slice,
    model_rewrite,
    objective,
    pod,
    pool,
    rewrite_rule,
)

Read = Callable[[Any], object]


def pool_or_reason(found: InferencePool) -> object:
    try:
        return pool_rule(found)
    except ValueError as exc:
        return str(exc)


POD, SLICE = pod("a", "10.0.0.1"), endpoint_slice("s", endpoint())
REWRITE = model_rewrite("r", rewrite_rule("a", to={"b": 1, "c": 2}), rewrite_rule(to={"d": None}))
KINDS: dict[str, tuple[Codec[Any], dict[str, Any], Read]] = {
    "pods": (PODS, POD, lambda found: merged([selected_pod_endpoints(found, "http")])),
    "slices": (
        SLICES,
        endpoint_slice("s", endpoint()),
        lambda found: merged([slice_endpoints(found, "http")]),
    ),
    "pools": (POOLS, pool(8000), pool_or_reason),
    "objectives": (OBJECTIVES, objective("o", 1), lambda found: priorities([found], "vllm")),
    "rewrites": (REWRITES, REWRITE, lambda found: model_rewrites([found], "vllm")),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values within a JSON value."""
    below = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path, *(each for key, value in below for each in places(value, (*path, key)))]


def replaced(found: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(found) if isinstance(found, dict) else list(found)
    copy[path[0]] = replaced(found[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    codec, whole, read = KINDS[kind]
    found = whole | {"metadata": whole["metadata"] | {"resourceVersion": "7"}}
    event = {"type": data.draw(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "ERROR"])), "object": found}
    changed = replaced(event, data.draw(st.sampled_from(places(event))), data.draw(JSON))
    try:
        taken = codec.event(json.dumps(changed).encode())
    except UNREADABLE:
        return
    if taken.object is not None:
        read(taken.object)


@pytest.mark.parametrize("kind", KINDS)
@given(start=st.integers(0, 400), length=st.integers(0, 400), noise=st.binary(max_size=20))
def test_any_bytes_in_a_line_or_a_page_are_read_or_refused(
    kind: str, start: int, length: int, noise: bytes
) -> None:
    codec, found, read = KINDS[kind]
    for text, decode in (
        (json.dumps({"type": "ADDED", "object": found}).encode(), codec.event),
        (json.dumps({"metadata": {}, "items": [found]}).encode(), codec.page),
    ):
        try:
            taken: Any = decode(text[:start] + noise + text[start + length :])
        except UNREADABLE:
            continue
        for each in getattr(taken, "items", None) or ():
            read(each)


class Pieces:
    """Body that arrives in pieces, as a socket yields them."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size, self.taken = data, size, 0

    async def readany(self) -> bytes:
        piece = self._data[self.taken : self.taken + self._size]
        self.taken += len(piece)
        return piece


async def test_a_line_of_4_mib_is_read_and_a_longer_one_ends_the_watch_at_once() -> None:
    most = b"x" * (MAX_LINE_BYTES - 1)
    read = [line async for line in lines(Pieces(most + b"\nlast\n", 1 << 16), 20.0, 20.0)]
    assert [len(line) for line in read] == [len(most), 4]
    endless = Pieces(b"x" * (MAX_LINE_BYTES * 4), 1 << 16)
    with pytest.raises(ApiRequestFailed, match="a line over 4,194,304 bytes"):
        _ = [line async for line in lines(endless, 20.0, 20.0)]
    assert endless.taken <= MAX_LINE_BYTES + (1 << 16)


def test_20_000_objects_are_followed_and_one_more_changes_nothing() -> None:
    bare = pod("", "10.0.0.1")
    metadata = bare["metadata"]

    def page(first: int, num: int) -> bytes:
        items = [bare | {"metadata": metadata | {"name": f"p{n}"}} for n in range(first, first + num)]
        more = {"continue": "next"} if first + num < MAX_OBJECTS else {}
        return json.dumps({"metadata": {"resourceVersion": "1"} | more, "items": items}).encode()

    made = Reflector[Pod](random.Random(1))
    for first in range(0, MAX_OBJECTS, 4000):
        is_whole = made.page(0.0, PODS.page(page(first, 4000)))
    assert is_whole and len(made.objects) == MAX_OBJECTS
    table = EndpointTable[Pod](lambda found: selected_pod_endpoints(found, "http"))
    table.replace(made.objects)
    assert len(table.endpoints) == 1  # all at one address
    one = PODS.event(json.dumps({"type": "ADDED", "object": named(bare, "one-more")}).encode())
    assert made.event(1.0, one) is None
    assert (len(made.objects), made.last_reason) == (MAX_OBJECTS, "more than 20,000 objects; select fewer")


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return found | {"metadata": found["metadata"] | {"name": name, "resourceVersion": "9"}}


def test_a_slice_of_odd_endpoints_has_those_that_are_addresses() -> None:
    odd = [endpoint(ip) for ip in ("10.0.0.1", "", "::", "a" * 10_000, "10.0.0.1/24", "10.0.0.2\n", "1")]
    found = slice_endpoints(msgspec.convert(endpoint_slice("s", *odd), EndpointSlice), "http")
    assert isinstance(found, Found) and all(len(each.url) < 60 for each in found.endpoints)
    assert {each.url for each in found.endpoints} == {"http://10.0.0.1:8000", "http://[::]:8000"}
