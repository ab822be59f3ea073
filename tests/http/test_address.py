"""Base URLs taken apart; tests/discovery/test_probed.py has the invalid ones."""

import pytest

from gateway.http.address import Address, worker_url


def test_an_http_url_is_split() -> None:
    address = Address.of("http://W:8000/a/B/")
    assert (address.url, address.name) == ("http://w:8000/a/B", "w:8000/a/B")
    assert (address.netloc, address.host, address.port, address.prefix) == ("w:8000", "w", 8000, "/a/B")
    assert (address.is_tls, address.unix_path) == (False, None)


def test_an_https_url_is_split() -> None:
    address = Address.of("https://[::1]")
    assert (address.netloc, address.host, address.port) == ("[::1]", "::1", 443)
    assert address.is_tls


@pytest.mark.parametrize("url", ["unix:/run/vLLM.sock", "UNIX:/run/vLLM.sock", "unix:///run/vLLM.sock"])
def test_a_unix_socket_is_split(url: str) -> None:
    """Events of its worker are on the same host."""
    address = Address.of(url)
    assert address.url == address.name == "unix:/run/vLLM.sock"
    assert address.unix_path == "/run/vLLM.sock"
    assert (address.netloc, address.prefix, address.host, address.is_tls) == (
        "localhost",
        "",
        "127.0.0.1",
        False,
    )
    assert Address.of(address.url) == address


@pytest.mark.parametrize("url", ["unix:", "unix:/", "unix:run.sock", "unix://run/vllm.sock", "unix:/run/"])
def test_an_invalid_socket_path_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="is not the absolute path of a socket"):
        Address.of(url)


def test_a_name_keeps_its_spelling() -> None:
    assert worker_url("DNS+http://Engines:8000/") == "dns+http://engines:8000"
    assert worker_url("http://W:1/") == "http://w:1"
    with pytest.raises(ValueError, match="has no DNS name"):
        worker_url("dns+unix:/x")
