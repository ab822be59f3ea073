"""The media of a large body, scoped to a tenant (`requests/media_uuid.py`) message by message.

    {"model": …, "messages": [{…}, {… "uuid": "a" …}], …}
     └ copied as it is ──────────┘  └ written again ┘└ copied

Runs in a thread, each step in short calls: see `outline.py`.
"""

import msgspec

from gateway.requests.large_body import joined
from gateway.requests.media_uuid import NO_MEDIA, has_key, scoped_parts
from gateway.requests.outline import Field, Outline


def scoped_large(body: bytes, salt: bytes) -> bytes:
    """The body with its media scoped. Raises UNREADABLE, or InvalidRequest for a key that lies too deep."""
    view, copied = memoryview(body), 0
    parts: list[bytes | memoryview] = []
    for each in Outline(body).fields:
        if each.name in NO_MEDIA:
            continue
        for start, end in _places(each, body):
            raw = msgspec.Raw(view[start:end])
            if has_key(raw):
                parts += [view[copied:start], *scoped_parts(raw, salt)]
                copied = end
    return joined([*parts, view[copied:]])


def _places(each: Field, body: bytes) -> list[tuple[int, int]]:
    """Places of a field's values that are looked into one by one: the messages, or the value itself."""
    is_list = body[each.start : each.start + 1] == b"["
    return each.items if is_list and each.items else [(each.start, each.end)]
