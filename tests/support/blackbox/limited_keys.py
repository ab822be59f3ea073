"""Requests that a key for some models may send, and those that it may not."""

from pathlib import Path

from gateway.core.route_table import TABLE
from tests.support.blackbox.http1_bytes import Header
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.multipart_forms import KIND, part

CARDS = ("base", {"id": "ad1", "parent": "base", "root": "/1"}, {"id": "ad2", "parent": "base", "root": "/2"})
OPENED = "/opened"
"""Route that the operator opens."""
JSON_ROUTES = (*(route.path for route in TABLE if route.names_model and not route.takes_forms), OPENED)
FORM_ROUTES = (*(route.path for route in TABLE if route.takes_forms), OPENED)
REST = '"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x"'
TAKEN = [  # the query, and the model in the body
    ("?model=ad1", ""),
    ("?model=ad1", '"model":null,'),
    ("?model=ad1", '"model":"",'),
    ("?model=ad1", '"model":"ad1",'),
    ("?%6dodel=ad1&x=1", '"model":null,'),
    ("?model=", '"model":"ad1",'),
    ("", '"model":"ad1",'),
]
REFUSED = [
    ("", ""),
    ("", '"model":null,'),
    ("", '"model":"",'),
    ("", '"model":"base",'),
    ("?model=base", ""),
    ("?model=ad1", '"model":"base",'),
    ("?model=base", '"model":"ad1",'),
    ("?model=ad1&model=base", ""),
    ("?model=ad1&model=ad1", '"model":"ad1",'),
    ("?model=ad1&Model=base", ""),
    ("?MODEL=base", '"model":"ad1",'),
    ("?model=ad1;model=base", ""),
    ("", '"model":"base","model":"ad1",'),
    ("", '"model":"ad1","model":"base",'),
    ("?model=ad1", '"model":"base","model":null,'),
    ("", '"\\u006dodel":"base","model":"ad1",'),
    ("", '"model":"ad1","mod\\u0065l":null,'),
    ("", '"model":"ad1","Model":"base",'),
    ("", '"MODEL":"base","model":"ad1",'),
    ("?model=ad1", '"Model":"base",'),
    ("?model=ad1", '"model":["base"],'),
]


def limited(tmp_path: Path, *models: str) -> tuple[Header, list[str]]:
    """Key for these models, and the flags of a gateway that knows it."""
    key, line = new_key("--tenant", "t", *(["--models", ",".join(models)] if models else []))
    file = tmp_path / "keys.jsonl"
    file.write_text(line)
    return bearer(key), ["--key-file", str(file), "--route", OPENED]


SOUND = part("file", b"RIFF\0", '; filename="a.wav"')
TAKEN_FORMS = [
    ("?model=ad1", [SOUND]),
    ("?model=ad1", [part("model", b""), SOUND]),
    ("?model=ad1", [SOUND, part("model", b"ad1")]),
    ("", [part("model", b"ad1"), SOUND]),
]
REFUSED_FORMS = [
    ("", [SOUND], KIND),
    ("", [part("model", b"base"), SOUND], KIND),
    ("?model=ad1", [part("model", b"base"), SOUND], KIND),
    ("?model=base", [part("model", b"ad1"), SOUND], KIND),
    ("", [part("model", b"ad1"), part("model", b"base"), SOUND], KIND),
    ("", [part("model", b"ad1"), part("model", b"base", '; filename="x"'), SOUND], KIND),
    ("?model=ad1", [part("model", b"base", '; filename="x"'), SOUND], KIND),
    ("", [part("model", b"ad1"), part("Model", b"base"), SOUND], KIND),
    ("", [part("mod\\el", b"ad1"), SOUND], KIND),
    ("", [part("model", b"ad1"), part("+AG0AbwBkAGUAbA-", b"base"), SOUND], KIND + b"; charset=utf-7"),
    ("", [part("model", b"ad1"), part("lora_path", b"ad2"), SOUND], KIND),
]
