"""Requests behind a reverse proxy: base path removed, client found."""

from typing import cast

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError, GatewayError
from gateway.http.messages import HttpRequest
from gateway.server.responder import Responder
from gateway.server.reverse_proxy import reverse_proxied


class ReverseProxyWorld:
    def __init__(self, **options: object) -> None:
        self.peer = "127.0.0.1"
        self.handled: list[HttpRequest] = []
        self.refused: list[GatewayError] = []
        config = config_of(**options)
        self.handle = reverse_proxied(
            config, self._handle, lambda http, responder, error: self.refused.append(error)
        )

    def _handle(self, http: HttpRequest, responder: Responder) -> None:
        self.handled.append(http)

    def ask(self, target: bytes, *headers: tuple[bytes, bytes]) -> HttpRequest:
        http = HttpRequest("POST", target, [(b"host", b"h"), *headers])
        self.handle(http, cast(Responder, self))
        return http


def test_without_options_the_handler_is_called_directly() -> None:
    world = ReverseProxyWorld()
    assert world.handle == world._handle


@pytest.mark.parametrize(
    ("target", "path", "rest"),
    [
        (b"/llm/v1/models?x=1", "/v1/models", b"/v1/models?x=1"),
        (b"/llm", "/", b"/"),
        (b"/llm?x=1", "/", b"/?x=1"),
        (b"/llm/", "/", b"/"),
        (b"/health", "/health", b"/health"),
        (b"/ready?model=m", "/ready", b"/ready?model=m"),
        (b"http://site/llm/v1/models", "/v1/models", b"/v1/models"),
    ],
)
def test_a_base_path_is_removed(target: bytes, path: str, rest: bytes) -> None:
    http = ReverseProxyWorld(base_path="/llm").ask(target)
    assert (http.path, http.target) == (path, rest)


@pytest.mark.parametrize("target", [b"/v1/models", b"/llmv1/models", b"/"])
def test_a_path_outside_the_base_path_is_404(target: bytes) -> None:
    world = ReverseProxyWorld(base_path="/llm")
    world.ask(target)
    assert world.handled == []
    assert (world.refused[0].status, "all routes are under /llm" in str(world.refused[0])) == (404, True)


def test_a_trusted_proxy_names_its_client() -> None:
    headers = (b"x-forwarded-for", b"203.0.113.7"), (b"x-forwarded-proto", b"https")
    http = ReverseProxyWorld(trusted_proxies=["127.0.0.1"]).ask(b"/", *headers)
    assert http.client == "203.0.113.7"
    assert http.forwarded == [
        (b"x-forwarded-for", b"203.0.113.7, 127.0.0.1"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"h"),
    ]


def test_the_header_of_an_untrusted_peer_is_replaced_by_its_address() -> None:
    world = ReverseProxyWorld(trusted_proxies=["10.0.0.0/8"])
    http = world.ask(b"/", (b"x-forwarded-for", b"203.0.113.7"))
    assert (http.client, http.forwarded[0]) == ("127.0.0.1", (b"x-forwarded-for", b"127.0.0.1"))


def test_a_unix_socket_has_no_address_and_no_tls() -> None:
    world = ReverseProxyWorld(trusted_proxies=["unix"], tls_cert_file="x")
    world.peer = ""
    http = world.ask(b"/", (b"x-forwarded-for", b"203.0.113.7"))
    assert http.client == "203.0.113.7"
    assert world.ask(b"/").forwarded == [(b"x-forwarded-proto", b"http"), (b"x-forwarded-host", b"h")]


def test_the_proxy_protocol_requires_trusted_proxies() -> None:
    with pytest.raises(ConfigError, match="proxy_protocol: needs trusted_proxies"):
        ReverseProxyWorld(proxy_protocol=True)
