"""A large body's media are scoped as a small one's, and all else of it is copied as it came."""

from typing import Any

import msgspec
import pytest

from gateway.requests.large_media import scoped_large
from gateway.requests.media_uuid import scoped

IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "a"}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [MESSAGE, {"role": "user", "content": 'said "uuid"'}, MESSAGE]},
        {"messages": [[MESSAGE], []]},
        {"messages": {"uuid": "a", "image": 1, "b": {"c": {}}}},
        {"input": [{"type": "message", "content": [IMAGE]}], "metadata": {"image": {"uuid": "a"}}},
        {"data_1": {"content": [IMAGE]}, "data_2": "x"},
        {"messages": []},
    ],
)
def test_it_is_what_a_small_body_becomes(fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"model": "m", **fields, "seed": 1})
    assert msgspec.json.decode(scoped_large(body, b"A")) == msgspec.json.decode(scoped(body, b"A"))


def test_what_has_no_medium_is_copied_as_it_came() -> None:
    body = b'{ "seed" : 1.0, "messages": [ {"content": [{"image":1, "uuid": "a"}]} ,1e2 ], "n": 0.10}'
    made = scoped_large(body, b"A")
    assert made.startswith(b'{ "seed" : 1.0, "messages": [ {') and made.endswith(b' ,1e2 ], "n": 0.10}')


def test_each_writing_of_a_repeated_field_is_scoped() -> None:
    messages = b'"messages":' + msgspec.json.encode([MESSAGE])
    made = scoped_large(b"{" + messages + b"," + messages + b"}", b"A")
    assert made.count(b'"uuid"') == 2 and b'"uuid":"a"' not in made
