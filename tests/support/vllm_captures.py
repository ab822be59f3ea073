"""Captured event messages of vLLM."""

from collections.abc import Iterator

import msgspec
from msgspec import msgpack

from engines.vllm import Vllm
from gateway.core.kv_events import EventBatch
from tests import DATA

VLLM = Vllm()


def capture(name: str) -> Iterator[tuple[str, list[bytes]]]:
    """Captured messages: `[source, recv_ns, frames]` one after the other, wrapped into one array to
    decode all.
    """
    content = (DATA / "vllm_captures" / name).read_bytes()
    for count in range(1, 100):
        try:
            records = msgpack.decode(b"\xdc" + count.to_bytes(2, "big") + content)
        except msgspec.DecodeError:
            continue
        yield from ((source, list(parts)) for source, _, parts in records)
        return
    raise AssertionError(f"{name} does not split into records")


def published(name: str) -> list[EventBatch]:
    return [VLLM.decode(parts) for source, parts in capture(name) if source == "pub"]
