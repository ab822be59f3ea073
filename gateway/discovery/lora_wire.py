"""What an engine is asked to load or unload an adapter (LoRA) with, and what its answer means."""

from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.core.decoding import UNREADABLE
from gateway.core.engine import AdapterCalls

MAX_MESSAGE_CHARS = 500
MAX_NAME_CHARS = 256
_NO_ROUTE = ("Not Found", "Method Not Allowed")


@dataclass(frozen=True, slots=True)
class Outcome:
    is_done: bool
    message: str


def load_body(name: str, path: str) -> dict[str, str]:
    """The same for vLLM and SGLang. The weights under a name are never replaced in place: what was computed
    with those before would stay in the engine's cache."""
    return {"lora_name": name, "lora_path": path}


def unload_body(name: str) -> dict[str, str]:
    return {"lora_name": name}


def check_name(name: str, what: str = "adapter") -> str:
    """Raises ValueError."""
    if not name or name != name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise ValueError(f"{what}: give 1 to {MAX_NAME_CHARS} printable characters")
    return name


def outcome(status: int, body: bytes, path: str, calls: AdapterCalls) -> Outcome:
    """vLLM answers a text, or an error as OpenAI's; SGLang an object either way, with `error_message`."""
    said = _said(body)
    if status == 200:
        return Outcome(True, said or "done")
    if status in (404, 405) and said in ("", *_NO_ROUTE):
        return Outcome(False, f"it has no {path}: it takes adapters if it is started with {calls.needs}")
    return Outcome(False, f"it answered {status}: {said}" if said else f"it answered {status}")


def _said(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE:
        return text[:MAX_MESSAGE_CHARS]
    return _message_of(told)[:MAX_MESSAGE_CHARS]


def _message_of(told: Any) -> str:
    if isinstance(told, str):
        return told
    if not isinstance(told, dict):
        return ""
    for field in ("message", "error_message", "detail", "error"):
        if message := _message_of(told.get(field)):
            return message
    return ""
