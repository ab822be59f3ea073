"""Objects, lists and watch events as the Kubernetes API sends them: the few fields that discovery reads.

Everything else of an object is skipped while it is decoded, and never kept. The API writes `null` where a
list or a map is empty.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec


class RoleLabel(msgspec.Struct):
    """The one label that is read; others are skipped."""

    role: str = msgspec.field(name="llm-d.ai/role", default="")


class PortAnnotations(msgspec.Struct):
    """The annotations that are read: the target ports that a pod serves, as in "8000,8001"."""

    active_ports: str | None = msgspec.field(name="inference.networking.k8s.io/active-ports", default=None)
    llm_d_active_ports: str | None = msgspec.field(name="llm-d.ai/active-ports", default=None)


class ObjectMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: RoleLabel | None = None
    annotations: PortAnnotations | None = None


class ContainerPort(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class Container(msgspec.Struct):
    ports: list[ContainerPort] | None = None


class PodSpec(msgspec.Struct):
    containers: list[Container] | None = None


class Condition(msgspec.Struct):
    type: str
    status: str


class PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[Condition] | None = None


class Pod(msgspec.Struct):
    metadata: ObjectMetadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class EndpointConditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    uid: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] | None = None
    conditions: EndpointConditions | None = None
    target_ref: TargetRef | None = None


class SlicePort(msgspec.Struct, rename="camel"):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    metadata: ObjectMetadata
    address_type: str
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class LabelSelector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class TargetPort(msgspec.Struct):
    number: int


class PoolSpec(msgspec.Struct, rename="camel"):
    selector: LabelSelector = msgspec.field(default_factory=LabelSelector)
    target_ports: list[TargetPort] | None = None
    app_protocol: str | None = None


class InferencePool(msgspec.Struct):
    metadata: ObjectMetadata
    spec: PoolSpec = msgspec.field(default_factory=PoolSpec)


class DatedMetadata(ObjectMetadata, rename="camel"):
    creation_timestamp: str = ""


class PoolReference(msgspec.Struct):
    name: str = ""
    group: str | None = None
    kind: str | None = None


class ObjectiveSpec(msgspec.Struct, rename="camel"):
    pool_ref: PoolReference | None = None
    priority: int | None = None


class InferenceObjective(msgspec.Struct):
    metadata: ObjectMetadata
    spec: ObjectiveSpec = msgspec.field(default_factory=ObjectiveSpec)


class ModelMatch(msgspec.Struct):
    value: str = ""
    type: str | None = None


class RequestMatch(msgspec.Struct):
    model: ModelMatch | None = None


class TargetModel(msgspec.Struct, rename="camel"):
    model_rewrite: str = ""
    weight: int | None = None


class RewriteRule(msgspec.Struct):
    matches: list[RequestMatch] | None = None
    targets: list[TargetModel] | None = None


class RewriteSpec(msgspec.Struct, rename="camel"):
    pool_ref: PoolReference | None = None
    rules: list[RewriteRule] | None = None


class InferenceModelRewrite(msgspec.Struct):
    metadata: DatedMetadata
    spec: RewriteSpec = msgspec.field(default_factory=RewriteSpec)


class Named(msgspec.Struct):
    """Object of which only the metadata counts: of a bookmark, or one that was deleted."""

    metadata: ObjectMetadata


class ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str | None = msgspec.field(name="continue", default=None)


class ApiStatus(msgspec.Struct):
    """The API's description of an error, as an answer or within a watch."""

    message: str = ""
    reason: str = ""
    code: int = 0


ApiObject = Pod | EndpointSlice | InferencePool | InferenceObjective | InferenceModelRewrite
T = TypeVar("T", bound=ApiObject)


class Page(msgspec.Struct, Generic[T]):
    """Page of a list."""

    metadata: ListMetadata
    items: list[T] | None = None


class RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """A line of a watch: `object` is set for one that was added or changed, `deleted` for one that is gone,
    and `error` for an error; none of them for a bookmark."""

    version: str = ""
    object: T | None = None
    deleted: ObjectMetadata | None = None
    error: ApiStatus | None = None


class Codec(Generic[T]):
    """Decoders for one kind of object. Both raise msgspec's errors, and ValueError."""

    def __init__(self, page_type: type[Page[T]], kind: type[T]) -> None:
        self.page: Callable[[bytes], Page[T]] = msgspec.json.Decoder(page_type).decode
        self._object = msgspec.json.Decoder(kind).decode

    def event(self, line: bytes) -> WatchEvent[T]:
        raw = _raw_event(line)
        match raw.type:
            case "ADDED" | "MODIFIED":
                found = self._object(raw.object)
                _check(found.metadata)
                return WatchEvent(found.metadata.resource_version, object=found)
            case "DELETED":
                metadata = _named(raw.object).metadata
                _check(metadata)
                return WatchEvent(metadata.resource_version, deleted=metadata)
            case "BOOKMARK":
                return WatchEvent(_named(raw.object).metadata.resource_version)
            case "ERROR":
                return WatchEvent(error=status_of(bytes(raw.object)))
        raise ValueError(f"unknown event '{raw.type[:40]}'")


PODS = Codec(Page[Pod], Pod)
SLICES = Codec(Page[EndpointSlice], EndpointSlice)
POOLS = Codec(Page[InferencePool], InferencePool)
OBJECTIVES = Codec(Page[InferenceObjective], InferenceObjective)
REWRITES = Codec(Page[InferenceModelRewrite], InferenceModelRewrite)

_raw_event = msgspec.json.Decoder(RawEvent).decode
_named = msgspec.json.Decoder(Named).decode
_status = msgspec.json.Decoder(ApiStatus).decode


def status_of(body: bytes) -> ApiStatus:
    """The error in a body; an empty one where it has none."""
    try:
        return _status(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ApiStatus()


def _check(metadata: ObjectMetadata) -> None:
    if not metadata.name or not metadata.resource_version:
        raise ValueError("an object without name or version")
