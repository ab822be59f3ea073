"""Values of dynamic metadata that Envoy forwards, found in an encoded FilterMetadata.

A fleet has few of them, and each comes with many requests: protobuf decodes a value once.
"""

from typing import Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import ListValue

from gateway.epp.messages import ProtocolError
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

MAX_KNOWN: Final = 256
MAX_KNOWN_BYTES: Final = 2048
"""Longer metadata is decoded each time: it is a list of many addresses."""


class MetadataKey:
    """A key of one namespace, with its value in the metadata seen lately."""

    __slots__ = ("_namespace", "_key", "_known")

    def __init__(self, namespace: str, key: str) -> None:
        self._namespace, self._key = namespace, key
        self._known: dict[bytes, object | None] = {}

    @property
    def num_known(self) -> int:
        return len(self._known)

    def value_in(self, parts: list[bytes]) -> object | None:
        """Return the value; None where Envoy forwards none. Raises ProtocolError for broken metadata."""
        if not parts:
            return None
        metadata = parts[0] if len(parts) == 1 else b"".join(parts)
        if metadata in self._known:
            return self._known[metadata]
        value = self._decoded(metadata)
        if len(metadata) <= MAX_KNOWN_BYTES:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[metadata] = value
        return value

    def _decoded(self, metadata: bytes) -> object | None:
        try:
            found = pb.FilterMetadata.FromString(metadata).filter_metadata
        except DecodeError as exc:
            raise ProtocolError(f"the metadata is not a FilterMetadata: {exc}") from exc
        if self._namespace not in found or self._key not in found[self._namespace]:
            return None
        try:
            value: object = found[self._namespace][self._key]
            return list(value) if isinstance(value, ListValue) else value
        except ValueError as exc:  # a field of Value that this protobuf does not know
            raise ProtocolError(f"the metadata has a value of no kind: {exc}") from exc
