"""A request has one model, wherever it is named."""

from typing import Any

import msgspec
import pytest

from gateway.core.errors import InvalidRequest, ModelMissing
from gateway.core.worker import ServedModel
from gateway.requests.model_name import (
    MAX_PARAMETERS,
    asked_in_query,
    check_once,
    check_plain,
    decide,
    default_model,
    renamed_query,
    with_query,
)


@pytest.mark.parametrize(
    ("target", "model"),
    [
        (b"/x", None),
        (b"/x?", None),
        (b"/x?a=1", None),
        (b"/x?model=", None),
        (b"/x?model=a%2Fb&x=1", "a/b"),
        (b"/x?x=1;y=2", None),
        (b"/x?%6dodel=m", "m"),
        (b"/x?model=%C3%A9", "\u00e9"),
    ],
)
def test_a_query_names_one_model_or_none(target: bytes, model: str | None) -> None:
    assert asked_in_query(target) == model


@pytest.mark.parametrize(
    "query",
    ["model=a&model=b", "model=a&model=a", "model=&model=a", "model=a&%6Dodel=b", "Model=a",
     "model=a&MODEL=b", "model=a;model=b", "x=1;model=b", "model=a%0d%0ab"],
)  # fmt: skip
def test_a_query_that_names_its_model_ambiguously_is_rejected(query: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked_in_query(b"/x?" + query.encode())
    assert (caught.value.param or "").casefold() == "model"


def test_a_query_of_very_many_parameters_is_rejected() -> None:
    most = b"/x?" + b"&".join([b"a=1"] * (MAX_PARAMETERS - 1)) + b"&model=m"
    assert asked_in_query(most) == "m"
    with pytest.raises(InvalidRequest, match="over 256 parameters; send fewer"):
        asked_in_query(most + b"&a=1")


def test_the_query_gets_the_chosen_model() -> None:
    assert with_query(b"/x", "a/b&c") == b"/x?model=a%2Fb%26c"
    assert with_query(b"/x?%6dodel=&a=%20", "m") == b"/x?a=%20&model=m"
    assert renamed_query(b"/x?a=1", "m") == b"/x?a=1"
    assert renamed_query(b"/x?model&a=1", "m") == b"/x?a=1&model=m"


@pytest.mark.parametrize(
    ("own", "asked", "default", "limited", "model", "is_written"),
    [
        ("m", None, None, False, "m", False),
        ("m", "m", None, True, "m", False),
        ("", "q", None, False, "q", True),
        (None, "q", None, False, "q", True),
        (..., "q", None, False, "q", True),
        (..., None, "d", False, "d", False),
        (..., None, "d", True, "d", True),
        (None, None, "d", False, "d", True),
        (..., None, "", True, "", False),
    ],
)
def test_the_model_of_a_body(
    own: object, asked: str | None, default: str | None, limited: bool, model: str, is_written: bool
) -> None:
    fields: dict[str, Any] = {} if own is ... else {"model": own}
    assert decide(fields, asked, default, is_limited=limited) is is_written
    assert fields["model"] == model


def test_a_body_without_a_model_or_with_another_is_rejected() -> None:
    with pytest.raises(ModelMissing):
        decide({"model": None}, None)
    with pytest.raises(InvalidRequest, match="'m' and the query 'q'"):
        decide({"model": "m"}, "q")
    with pytest.raises(InvalidRequest, match="must be a string"):
        decide({"model": 3}, "q")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","x":1,"\\u006dodel":"b"}',
        b'{"mod\\u0065l":"a","model":null}',
        b'{"model":null,"model":"a","model":{"x":[]}}',
    ],
)
def test_a_body_that_names_its_model_twice_is_rejected(body: bytes) -> None:
    assert set(msgspec.json.decode(body)) <= {"model", "x"}
    with pytest.raises(InvalidRequest, match="times") as caught:
        check_once(body)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    "body", [b'{"model":"a","x":{"model":1,"y":[{"model":2,"model":3}]}}', b"{}", b'{"a":"model"}']
)
def test_a_nested_model_field_is_ignored(body: bytes) -> None:
    check_once(body)


def test_an_adapter_is_rejected_on_a_route_without_a_model_in_its_body() -> None:
    served = {"m": ServedModel("m", "root"), "ad": ServedModel("ad", "root", "ad")}
    check_plain("/generate", "m", served)
    check_plain("/generate", "unknown", served)
    with pytest.raises(InvalidRequest, match="adapter 'ad'"):
        check_plain("/generate", "ad", served)


ONE = {
    "m": ServedModel("m", "root"),
    "alias": ServedModel("alias", "root"),
    "tuned": ServedModel("tuned", "root", "tuned"),
}
TWO = ONE | {"other": ServedModel("other", "else")}


@pytest.mark.parametrize(
    ("path", "served", "model"),
    [
        ("/generate", ONE, "m"),
        ("/generate", {}, ""),
        ("/generate", TWO, None),
        ("/v1/chat/completions", ONE, None),
        ("/v1/embeddings", ONE, None),
        ("/tokenize", ONE, None),
        ("/v1/load_lora_adapter", ONE, "m"),
    ],
)
def test_a_route_without_a_model_field_takes_the_only_model_served(
    path: str, served: dict[str, ServedModel], model: str | None
) -> None:
    if model is None:
        with pytest.raises(ModelMissing):
            default_model(path, served)
    else:
        assert default_model(path, served) == model
