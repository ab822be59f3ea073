"""Endpoints of a k8s:// URL by a single list, without a watch: for `kvgate check`."""

import random
import time
from functools import partial

import msgspec

from gateway.discovery.kubernetes.api_objects import PODS, POOLS, SLICES, Codec, EndpointSlice, Pod, T
from gateway.discovery.kubernetes.client import ApiClient, ApiQuery
from gateway.discovery.kubernetes.endpoints import (
    KubernetesEndpoint,
    selected_pod_endpoints,
    slice_endpoints,
)
from gateway.discovery.kubernetes.inference_pools import pool_rule
from gateway.discovery.kubernetes.queries import pods_query, pool_query, slices_query
from gateway.discovery.kubernetes.reflector import Reflector
from gateway.discovery.kubernetes.tables import EndpointTable
from gateway.http.kubernetes_url import KubernetesUrl, ObjectKind


async def listed_endpoints(parsed: KubernetesUrl, client: ApiClient) -> dict[str, KubernetesEndpoint]:
    """Endpoints by URL. Raises ApiRequestFailed, and ValueError for objects that cannot be used."""
    if parsed.kind is ObjectKind.SERVICE:
        slices = EndpointTable[EndpointSlice](
            partial(slice_endpoints, port=parsed.port, is_tls=parsed.is_tls)
        )
        return await _endpoints(slices, client, slices_query(parsed), SLICES)
    if parsed.kind is ObjectKind.PODS:
        pods = EndpointTable[Pod](partial(selected_pod_endpoints, port=parsed.port, is_tls=parsed.is_tls))
        return await _endpoints(pods, client, pods_query(parsed.namespace, parsed.selector), PODS)
    pools = await _objects(client, pool_query(parsed), POOLS)
    if parsed.name not in pools:
        raise ValueError(f"there is no InferencePool {parsed.name}")
    rule = pool_rule(pools[parsed.name], is_tls=parsed.is_tls)
    table = EndpointTable[Pod](rule.endpoints)
    return await _endpoints(table, client, pods_query(parsed.namespace, rule.selector), PODS)


async def _endpoints(
    table: EndpointTable[T], client: ApiClient, query: ApiQuery, codec: Codec[T]
) -> dict[str, KubernetesEndpoint]:
    table.replace(await _objects(client, query, codec))
    if not table.endpoints and table.refusal:
        raise ValueError(table.refusal)
    return table.endpoints


async def _objects(client: ApiClient, query: ApiQuery, codec: Codec[T]) -> dict[str, T]:
    reflector, token, is_whole = Reflector[T](random.Random()), "", False
    while not is_whole:
        try:
            page = codec.page(await client.page(query, token))
        except msgspec.MsgspecError as exc:
            raise ValueError(f"unreadable list: {exc}") from exc
        is_whole, token = reflector.page(time.monotonic(), page), page.metadata.next_page or ""
        if reflector.num_failures:
            raise ValueError(reflector.last_reason)
    return dict(reflector.objects)
