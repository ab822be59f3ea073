"""Requests and answers of HTTP/1.1, byte for byte, as clients and workers send them."""

import json

Header = tuple[bytes, bytes]


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def wire(status: int, body: bytes = b"", *headers: Header, length: bool = True) -> bytes:
    """Whole answer, byte for byte."""
    lines = [b"HTTP/1.1 %d Whatever" % status, *(n + b": " + v for n, v in headers)]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*parts: bytes, end: bool = True) -> bytes:
    out = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return out + b"0\r\n\r\n" if end else out


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


DONE = b"data: [DONE]\n\n"


ASKS_USAGE = b'"stream_options":{"include_usage":true},'


def event(text: str, **more: object) -> bytes:
    """Event of a completion stream, as vLLM writes it."""
    fields = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": text}], **more}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def request(
    method: str, target: str, body: bytes | None = None, *headers: Header, version: str = "1.1"
) -> bytes:
    """Bytes of a request; a body has its Content-Length unless the headers frame it."""
    lines = [f"{method} {target} HTTP/{version}".encode(), b"Host: gateway"]
    lines += [name + b": " + value for name, value in headers]
    framed = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)
    if body is not None and not framed:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def completion(prompt: object = "hi", model: str = "m", **fields: object) -> bytes:
    return json.dumps({"model": model, "prompt": prompt, **fields}).encode()


def post(body: bytes, *headers: Header, target: str = COMPLETIONS, version: str = "1.1") -> bytes:
    return request("POST", target, body, *headers, version=version)
