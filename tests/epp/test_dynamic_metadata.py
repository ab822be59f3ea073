import pytest
from google.protobuf.struct_pb2 import ListValue, Value

from gateway.epp.dynamic_metadata import MAX_KNOWN, MAX_KNOWN_BYTES, MetadataKey
from gateway.epp.messages import ProtocolError
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb


def metadata(value: object, namespace: str = "envoy.lb", key: str = "served") -> bytes:
    made = pb.FilterMetadata()
    made.filter_metadata[namespace][key] = value
    return bytes(made.SerializeToString())


def test_a_value_is_found() -> None:
    key = MetadataKey("envoy.lb", "served")
    for value in ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1", 7.0, None, True):
        assert key.value_in([metadata(value)]) == value
    assert key.value_in([metadata([])]) == []
    assert list(key.value_in([metadata(["a", "b"])])) == ["a", "b"]


def test_a_value_that_is_not_forwarded_is_none() -> None:
    key = MetadataKey("envoy.lb", "served")
    for other in ([], [b""], [metadata("a", key="other")], [metadata("a", namespace="other")]):
        assert key.value_in(other) is None


def test_keys_do_not_share_values() -> None:
    data = [metadata("a")]
    assert MetadataKey("envoy.lb", "served").value_in(data) == "a"
    assert MetadataKey("envoy.lb", "other").value_in(data) is None


def test_parts_are_merged_as_protobuf_merges_a_message() -> None:
    parts = [metadata("a"), metadata("b", namespace="other"), metadata("c")]
    assert MetadataKey("envoy.lb", "served").value_in(parts) == "c"
    assert MetadataKey("other", "served").value_in(parts) == "b"


@pytest.mark.parametrize("size", [1, MAX_KNOWN_BYTES, MAX_KNOWN_BYTES * 2])
def test_many_values_are_each_read_as_they_are(size: int) -> None:
    key = MetadataKey("envoy.lb", "served")
    for number in [*range(MAX_KNOWN * 2), 0, 1, 0]:
        value = f"{number}" + "x" * size
        assert key.value_in([metadata(value)]) == value
    assert key.num_known <= MAX_KNOWN


def test_broken_metadata_ends_the_stream() -> None:
    with pytest.raises(ProtocolError, match="not a FilterMetadata"):
        MetadataKey("a", "b").value_in([b"\xff"])


@pytest.mark.parametrize(
    "unset", [Value(), Value(list_value=ListValue(values=[Value()]))], ids=["value", "list"]
)
def test_a_value_of_an_unknown_kind_ends_the_stream(unset: Value) -> None:
    made = pb.FilterMetadata()
    made.filter_metadata["envoy.lb"].fields["served"].CopyFrom(unset)
    with pytest.raises(ProtocolError, match="no kind"):
        MetadataKey("envoy.lb", "served").value_in([made.SerializeToString()])
