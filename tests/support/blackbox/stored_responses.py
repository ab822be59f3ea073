"""Worker that stores the answers of /v1/responses."""

import json

from tests.support.blackbox.http1_bytes import SSE_HEAD, chunked, wire
from tests.support.blackbox.scripted_worker import Call

RESPONSES = "/v1/responses"


class StoringWorker:
    """Worker that stores responses, as vLLM with VLLM_ENABLE_RESPONSES_API_STORE does."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def script(self, call: Call) -> None:
        path = call.target.partition(b"?")[0].decode()
        if path != RESPONSES:
            own = path.split("/")[3]
            return await call.send(self._found(own, path.endswith("/cancel")))
        fields = json.loads(call.body)
        previous = fields.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            return await call.send(self._found(previous, False))
        own = f"resp_{len(self.kept)}f00d{id(self)}"
        self.kept.append(own)
        if not fields.get("stream"):
            return await call.send(wire(200, self._response(own, previous)))
        first = b'{"response":%b,"type":"response.created"}' % self._response(own, previous)
        delta = b'{"type":"response.output_text.delta","delta":"%b"}' % own.encode()
        last = b'{"response":%b,"type":"response.completed"}' % self._response(own, previous)
        stream = [b"event: e\ndata: %b\n\n" % each for each in (first, delta, last)]
        return await call.send(SSE_HEAD + chunked(*stream))

    def _found(self, own: str, is_cancel: bool) -> bytes:
        if own not in self.kept:
            message = f"Response with id '{own}' not found."
            return wire(404, json.dumps({"error": {"message": message, "code": 404}}).encode())
        return wire(200, self._response(own, None, "cancelled" if is_cancel else "completed"))

    def _response(self, own: str, previous: str | None, status: str = "completed") -> bytes:
        fields = {"id": own, "object": "response", "status": status, "previous_response_id": previous}
        return json.dumps(fields, separators=(",", ":")).encode()


def responses_body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()
