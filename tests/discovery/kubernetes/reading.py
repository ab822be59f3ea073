"""Objects of the tests' API server, decoded as discovery decodes them."""

from typing import Any

import msgspec

from gateway.discovery.kubernetes.api_objects import EndpointSlice, InferencePool, Pod


def as_pod(found: dict[str, Any]) -> Pod:
    return msgspec.convert(found, Pod)


def as_slice(found: dict[str, Any]) -> EndpointSlice:
    return msgspec.convert(found, EndpointSlice)


def as_pool(found: dict[str, Any]) -> InferencePool:
    return msgspec.convert(found, InferencePool)
