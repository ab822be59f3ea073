"""Media ids of two tenants never meet, and the rest of a body is unchanged."""

from typing import Any

import msgspec
import pytest

from gateway.core.errors import InvalidRequest
from gateway.requests.large_body import parse_large
from gateway.requests.large_media import scoped_large
from gateway.requests.media_uuid import MAX_COMMAS, MAX_DEPTH, Rewrite, scope_media
from gateway.requests.parsing import BodyRules, parse_request

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "a"}
NAMELESS: dict[str, Any] = {"type": "image_url", "image_url": None, "uuid": "a"}
TEXT = {"type": "text", "text": 'he said "uuid"', "uuid": "a"}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {"image": 1, "uuid": "a"}}


def chat(*parts: object, **fields: object) -> bytes:
    messages = [{"role": "user", "content": "first"}, {"role": "user", "content": list(parts)}]
    return msgspec.json.encode({"model": "m", "messages": messages, **fields})


def sent(body: bytes, salt: str = "A", path: str = CHAT, *, large: bool = False) -> Any:
    request = (parse_large if large else parse_request)(path, body, rules=BodyRules(salt=salt))
    scope_media(request, salt, scoped_large if large else None)
    return msgspec.json.decode(request.body)


def parts(body: bytes, salt: str = "A", *, large: bool = False) -> Any:
    return sent(body, salt, large=large)["messages"][1]["content"]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "part", [IMAGE, NAMELESS, {"image_url": "u", "uuid": "a"}, {"type": "input_audio", "uuid": "a"}]
)
def test_a_media_uuid_differs_by_tenant(part: dict[str, Any], large: bool) -> None:
    (first,), (again,), (second,) = (parts(chat(part), salt, large=large) for salt in "AAB")
    assert first == again and first["uuid"] != second["uuid"] and first["uuid"] != "a"
    assert len(first["uuid"]) == 43
    assert first | {"uuid": "a"} == part


def test_a_long_medium_keeps_its_data() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:," + "x" * 200_000}, "uuid": "a" * 100_000}
    (scoped,) = parts(chat(part), large=True)
    assert scoped["image_url"] == part["image_url"] and len(scoped["uuid"]) == 43


@pytest.mark.parametrize("key", [rb'"u\u0075id"', rb'"\u0075\u0075\u0069\u0064"'])
def test_escapes_do_not_hide_a_uuid(key: bytes) -> None:
    assert parts(chat(IMAGE).replace(b'"uuid"', key)) == parts(chat(IMAGE))


def test_a_key_written_twice_is_scoped() -> None:
    (scoped,) = parts(chat(IMAGE).replace(b'"uuid":"a"', b'"uuid":"b","uuid":"a"'))
    assert [scoped] == parts(chat(IMAGE))


@pytest.mark.parametrize("uuid", [5, ["a"], {"b": 1}, "", "a", 5.5, False])
def test_a_uuid_of_any_type_is_scoped(uuid: object) -> None:
    (scoped,) = parts(chat(IMAGE | {"uuid": uuid}))
    assert isinstance(scoped["uuid"], str) and len(scoped["uuid"]) == 43


@pytest.mark.parametrize("part", [TEXT, CALL, IMAGE | {"uuid": None}])
def test_a_uuid_that_names_no_medium_stays(part: dict[str, Any]) -> None:
    assert parts(chat(part)) == [part]


def test_tools_and_numbers_stay_as_they_were() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"image": {"uuid": "a"}, "uuid": 1}}}
    ]
    body = chat(IMAGE, tools=tools)[:-1] + b',"temperature":0.10}'
    request = parse_request(CHAT, body, rules=BodyRules(salt="A"))
    scope_media(request, "A")
    assert b'"temperature":0.10,' in request.body
    assert msgspec.json.decode(request.body)["tools"] == tools


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "uuid": "a"}]}]}),
        (EMBEDDINGS, {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("/v1/score", {"data_1": {"content": [IMAGE]}, "data_2": "x"}),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": [IMAGE]}]]}),
        ("/tokenize", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ],
)
def test_a_medium_is_found_on_every_route(path: str, fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"model": "m", **fields})
    assert b'"uuid":"a"' not in msgspec.json.encode(sent(body, path=path))


def test_a_body_without_media_is_not_written_again() -> None:
    request = parse_request(CHAT, chat({"type": "text", "text": '"uuid"'}), rules=BodyRules(salt="A"))
    before = request.body
    scope_media(request, "A")
    assert request.body is before


def test_an_unreadable_or_oversized_medium_is_rejected() -> None:
    half = rb'{"model":"m","input":[{"image":"x","uuid":"\ud800"}]}'
    request = parse_request(CHAT, chat(IMAGE), rules=BodyRules(salt="A"))
    request.body = half
    with pytest.raises(InvalidRequest, match="beside a 'uuid'"):
        scope_media(request, "A")
    request.is_crowded = True
    with pytest.raises(InvalidRequest, match="leave the 'uuid' out"):
        scope_media(request, "A")


@pytest.mark.parametrize("rewrite", [None, scoped_large])
def test_a_uuid_is_looked_for_in_bounds(rewrite: Rewrite | None) -> None:
    """Each level and each value takes a moment, so that a body could take a thread for seconds."""
    deep: object = IMAGE
    for _ in range(MAX_DEPTH):
        deep = [deep]
    request = parse_request(CHAT, chat(deep), rules=BodyRules(salt="A"))
    with pytest.raises(InvalidRequest, match="over 16 levels deep"):
        scope_media(request, "A", rewrite)
    request = parse_request(CHAT, chat(IMAGE, seed=[1] * (MAX_COMMAS + 2)), rules=BodyRules(salt="A"))
    with pytest.raises(InvalidRequest, match="too many values"):
        scope_media(request, "A", rewrite)
