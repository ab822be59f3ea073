"""CORS: tables of origins, preflights and the headers of answers."""

import pytest

from gateway.core.errors import Forbidden
from gateway.http.cross_origin import MAX_AGE_S, CrossOriginPolicy, check_origins, origin_of
from gateway.http.messages import Header, HttpRequest

PAGE = b"https://chat.example"
ASKS: Header = (b"access-control-request-method", b"POST")


def request(method: str, *headers: Header) -> HttpRequest:
    return HttpRequest(method, b"/v1/chat/completions", list(headers))


def preflight(policy: CrossOriginPolicy, *headers: Header) -> dict[bytes, bytes] | None:
    found = policy.preflight(request("OPTIONS", *headers))
    return None if found is None else dict(found)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("*", "*"),
        ("https://Chat.Example", "https://chat.example"),
        ("https://chat.example:443", "https://chat.example"),
        ("http://chat.example:80", "http://chat.example"),
        ("http://chat.example:443", "http://chat.example:443"),
        ("http://localhost:5173", "http://localhost:5173"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_origins_are_kept_as_browsers_write_them(text: str, origin: str) -> None:
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "chat.example",
        "https://",
        "https://chat.example/",
        "https://*.example",
        "https://a,https://b",
    ]
    + ["https://u@chat.example", "https://chat.example?x", "https://a b", "https://ä.example", "**"],
)
def test_other_texts_are_no_origins(text: str) -> None:
    with pytest.raises(ValueError, match="cors_origins: .*is not an origin"):
        check_origins("cors_origins", [text])


def test_any_origin_stands_alone() -> None:
    with pytest.raises(ValueError, match="name no other origin with it"):
        CrossOriginPolicy(["*", "https://chat.example"])


def test_a_listed_origin_may_read_any_answer_and_another_may_not() -> None:
    policy = CrossOriginPolicy(["https://chat.example", "http://localhost:5173"])
    headers = dict(policy.headers(request("POST", (b"origin", PAGE))))
    assert headers[b"access-control-allow-origin"] == PAGE
    assert headers[b"access-control-allow-credentials"] == b"true" and headers[b"vary"] == b"Origin"
    for name in (b"x-request-id", b"retry-after", b"x-ratelimit-remaining-tokens", b"x-kvgate-worker"):
        assert name in headers[b"access-control-expose-headers"].split(b", ")
    for foreign in (b"https://evil.example", b"null", b"", PAGE + b".evil.example", b"http://chat.example"):
        assert policy.headers(request("POST", (b"origin", foreign))) == [(b"vary", b"Origin")]
    assert policy.headers(request("POST")) == [(b"vary", b"Origin")]


def test_any_origin_is_allowed_without_credentials() -> None:
    policy = CrossOriginPolicy(["*"])
    headers = dict(policy.headers(request("POST", (b"origin", b"null"))))
    assert headers[b"access-control-allow-origin"] == b"*"
    assert b"access-control-allow-credentials" not in headers
    assert policy.headers(request("POST")) == []


def test_a_preflight_is_answered_with_what_it_asks_for() -> None:
    for policy in (CrossOriginPolicy(["*"]), CrossOriginPolicy([PAGE.decode()])):
        wants = (b"access-control-request-headers", b"authorization,content-type, x-stainless-os")
        headers = preflight(policy, (b"origin", PAGE), ASKS, wants)
        assert headers is not None
        assert headers[b"access-control-allow-headers"] == wants[1]
        assert {b"GET", b"POST", b"DELETE"} <= set(headers[b"access-control-allow-methods"].split(b", "))
        assert headers[b"access-control-max-age"] == b"%d" % MAX_AGE_S
        odd = preflight(policy, (b"origin", PAGE), ASKS, (b"access-control-request-headers", b"a b; c"))
        assert odd is not None and b"access-control-allow-headers" not in odd


def test_only_preflights_are_answered_as_such() -> None:
    policy = CrossOriginPolicy(["*"])
    assert preflight(policy, (b"origin", PAGE)) is None
    assert preflight(policy, ASKS) is None
    assert policy.preflight(request("POST", (b"origin", PAGE), ASKS)) is None


def test_a_preflight_of_another_origin_is_refused() -> None:
    with pytest.raises(Forbidden, match="'https://evil.example' may not use this API") as caught:
        preflight(CrossOriginPolicy([PAGE.decode()]), (b"origin", b"https://evil.example"), ASKS)
    assert (caught.value.status, caught.value.code) == (403, "origin_not_allowed")


def test_the_repr_names_the_origins() -> None:
    assert repr(CrossOriginPolicy(["https://b", "https://a"])) == "CrossOriginPolicy(https://a, https://b)"
