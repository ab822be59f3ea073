"""Messages of Envoy as protobuf reads them, and random ones: whole, broken, and of unusual encodings.

The contract of the oracle has no metadata, which is read later and apart; and trailers have a field, since
protobuf's check of empty messages is a looser one.
"""

import random
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2
from google.protobuf.message import DecodeError

from gateway.epp.messages import ProtocolError
from gateway.epp.processing_request import decode
from gateway.http.messages import Header
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb

Read = tuple[int, list[Header], bytes, bool, tuple[int, int] | None]
"""Number of the event's field, headers, body, end of stream, modes."""

KINDS = {field.number: field.name for field in pb.ProcessingRequest.DESCRIPTOR.oneofs[0].fields}
NUMBERS = (0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 9, 11, 11, 20, 3000, 1 << 28)
VALUES = (0, 1, 2, 127, 128, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)
CONTENTS = (b"", b"a", b"abc", b"\xc3\xa9", b"\xff", b"x" * 200, b"\xed\xa0\x80")
EVENTS = [name for name in KINDS.values() if not name.endswith("trailers")] * 3 + list(KINDS.values())


def _contract() -> Any:
    file = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    file.name, file.package = "oracle.proto", "oracle"
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".kvgate.v1.", ".oracle.")
        if message.name == "ProcessingRequest":
            message.field.remove(next(field for field in message.field if field.name == "metadata_context"))
        elif message.name == "HttpTrailers":
            message.field.add(name="unused", number=1000, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("oracle.ProcessingRequest"))


ProcessingRequest = _contract()


def expected(data: bytes) -> Read | None:
    """Read a message with protobuf; None where it rejects it."""
    try:
        message = ProcessingRequest.FromString(data)
    except DecodeError:
        return None
    config = message.protocol_config
    modes = (config.request_body_mode, config.response_body_mode)
    given = modes if message.HasField("protocol_config") else None
    name = message.WhichOneof("request")
    if name is None:
        return 0, [], b"", False, given
    event, kind = getattr(message, name), message.DESCRIPTOR.fields_by_name[name].number
    if name.endswith("headers"):
        headers = [(each.key.encode(), each.raw_value or each.value) for each in event.headers.headers]
        return kind, headers, b"", event.end_of_stream, given
    if name.endswith("body"):
        return kind, [], event.body, event.end_of_stream, given
    return kind, [], b"", False, given


def decoded(data: bytes) -> Read | None:
    """Read a message with the decoder under test; None where it rejects it."""
    try:
        found = decode(data)
    except ProtocolError:
        return None
    modes = (found.request_mode, found.response_mode) if found.has_modes else None
    return found.kind, found.headers, found.body, found.is_end, modes


def some(rng: random.Random) -> bytes:
    """Return a message: about half of them are sound."""
    if rng.random() < 0.6:
        data = b"".join([_sound(rng) for _ in range(rng.choice((1, 1, 2)))])
    else:
        data = _fields(rng, 0)
    if rng.random() < 0.3:
        data += _fields(rng, 0)
    return _broken(rng, data) if rng.random() < 0.5 else data


def _sound(rng: random.Random) -> bytes:
    message = ProcessingRequest()
    for name in rng.choices(EVENTS, k=rng.choice((1, 1, 2))):
        event = getattr(message, name)
        event.SetInParent()
        if "headers" in name:
            for _ in range(rng.randrange(4)):
                key = rng.choice((":path", "x-é", "a" * 150))
                raw, value = rng.choice((b"", b"v", b"\xff" * 3)), rng.choice((b"", b"w"))
                event.headers.headers.add(key=key, raw_value=raw, value=value)
        if "body" in name:
            event.body = rng.choice((b"", b"b", b"x" * 300, b"y" * 20_000))
        if "trailers" not in name:
            event.end_of_stream = rng.random() < 0.5
    if rng.random() < 0.5:
        message.protocol_config.request_body_mode = rng.choice((0, 4, -1))
        message.protocol_config.response_body_mode = rng.choice((0, 2))
    return bytes(message.SerializeToString())


def _fields(rng: random.Random, depth: int) -> bytes:
    return b"".join([_field(rng, depth) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))])


def _field(rng: random.Random, depth: int) -> bytes:
    """Return a field of any kind, with numbers that are longer than need be here and there."""
    number, kind = rng.choice(NUMBERS), rng.choice([2] * 12 + [0] * 4 + [1, 3, 4, 5, 6])
    tag = _number(number << 3 | kind, rng.choice([0] * 15 + [1, 2, 3, 4]))
    if kind == 0:
        return tag + _number(rng.choice(VALUES), rng.choice([0] * 9 + [1, 2, 5, 9]))
    if kind == 2:
        content = _fields(rng, depth + 1) if depth < 4 and rng.random() < 0.8 else rng.choice(CONTENTS)
        return tag + _number(len(content), rng.choice([0] * 15 + [1, 2, 4])) + content
    if kind == 3:
        return tag + _fields(rng, depth + 1) + _number(number << 3 | 4, 0)
    return tag + b"x" * {1: 8, 5: 4}.get(kind, 0)


def _number(value: int, num_more: int) -> bytes:
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    if num_more:
        octets[-1] |= 0x80
        octets += b"\x80" * (num_more - 1) + b"\0"
    return bytes(octets)


def _broken(rng: random.Random, data: bytes) -> bytes:
    octets = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, stroke = rng.randrange(len(octets) + 1), rng.random()
        if stroke < 0.5:
            octets[at : at + 1] = bytes([rng.choice((rng.randrange(256), 0x80, 0, 0xFF))])
        elif stroke < 0.75:
            octets.insert(at, rng.randrange(256))
        else:
            del octets[at : at + rng.choice((1, 2, 5))]
    return bytes(octets)
