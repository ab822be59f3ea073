"""Request bodies and answers of engines' adapter (LoRA) endpoints."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.engine import AdapterCalls

MAX_MESSAGE_CHARS = 500
MAX_NAME_CHARS = 256
_NO_ROUTE = ("Not Found", "Method Not Allowed")


@dataclass(frozen=True, slots=True)
class AdapterCallResult:
    is_done: bool
    message: str


def load_body(name: str, path: str) -> dict[str, str]:
    """Return the load request of vLLM and SGLang. Weights under a name are never replaced in place: results
    computed with the old ones would stay in the engine's cache."""
    return {"lora_name": name, "lora_path": path}


def unload_body(name: str) -> dict[str, str]:
    return {"lora_name": name}


def check_name(name: str, what: str = "adapter") -> str:
    """Return the name if valid. Raises ValueError."""
    if not name or name != name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise ValueError(f"{what}: give 1 to {MAX_NAME_CHARS} printable characters")
    return name


def outcome(status: int, body: bytes, path: str, calls: AdapterCalls) -> AdapterCallResult:
    """Interpret an answer: vLLM sends text, or an error as OpenAI's; SGLang an object either way, with
    `error_message`."""
    message = _message(body)
    if status == 200:
        return AdapterCallResult(True, message or "done")
    if status in (404, 405) and message in ("", *_NO_ROUTE):
        return AdapterCallResult(False, f"no {path}: start the engine with {calls.needs} to load adapters")
    return AdapterCallResult(False, f"answered {status}: {message}" if message else f"answered {status}")


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        content = msgspec.json.decode(body)
    except UNREADABLE:
        return text[:MAX_MESSAGE_CHARS]
    return _message_of(content)[:MAX_MESSAGE_CHARS]


def _message_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    for field in ("message", "error_message", "detail", "error"):
        if message := _message_of(value.get(field)):
            return message
    return ""
