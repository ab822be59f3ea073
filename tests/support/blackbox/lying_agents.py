"""Agents that send anything over gRPC."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc.aio

from gateway.core.blocks import root_hash
from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from gateway.replication.codec import SERVICE

ROOT = root_hash("m")
"""Prompt of the simulated engine's model."""
Say = Callable[["Liar"], Iterator[bytes]]


def update(**fields: Any) -> bytes:
    return bytes(pb.Update(**fields).SerializeToString())


class Liar:
    """Fake agent; `say` follows after a valid Hello, and starts over with each subscription."""

    def __init__(self, engine_url: str) -> None:
        self.hello = pb.Hello(
            version=1,
            engine_url=engine_url,
            block_size=16,
            root=ROOT,
            status=pb.Status(state=pb.Status.EXACT),
        )
        self.say: Say = lambda liar: iter(())
        self.num_asked = self.num_said = 0
        self.has_ended = False
        self.faults: list[Exception] = []

    async def describe(self, request: bytes, context: Any) -> bytes:
        return bytes(self.hello.SerializeToString())

    async def subscribe(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.num_asked += 1
        self.has_ended = False
        try:
            for message in self.say(self):
                self.num_said += 1
                yield message
        except (TypeError, ValueError, AttributeError) as exc:
            self.faults.append(exc)
            raise
        finally:  # or the gateway wants no more
            self.has_ended = True

    def right(self) -> bytes:
        return update(hello=self.hello)


@contextlib.asynccontextmanager
async def serving_agent(liar: Liar, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server()
    handlers = {
        "Describe": grpc.unary_unary_rpc_method_handler(liar.describe),
        "Subscribe": grpc.unary_stream_rpc_method_handler(liar.subscribe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
