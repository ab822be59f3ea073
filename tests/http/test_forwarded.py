"""Client of a request behind trusted proxies, read from the right."""

import pytest

from gateway.http.forwarded import MAX_CHARS, Origin, origin
from gateway.http.messages import Header
from gateway.http.networks import Trusted

TRUSTED = Trusted(["10.0.0.0/8", "fd00::/8"], "x").trusts
ME, CLIENT, LIAR = "10.0.0.1", "203.0.113.7", "198.51.100.9"


def of(*headers: Header, peer: str = ME, prefers: str = "auto") -> Origin:
    received = [(b"host", b"gateway:8000"), *headers]
    return origin(received, peer, TRUSTED, scheme="http", prefers=prefers)


def xff(value: str) -> Header:
    return b"x-forwarded-for", value.encode()


def forwarded(value: str) -> Header:
    return b"forwarded", value.encode()


@pytest.mark.parametrize(
    ("headers", "client", "hops"),
    [
        pytest.param([xff(CLIENT)], CLIENT, (ME,), id="one proxy"),
        pytest.param([xff(f"{CLIENT}, 10.0.0.2")], CLIENT, ("10.0.0.2", ME), id="two"),
        pytest.param([xff(CLIENT), xff("10.0.0.2")], CLIENT, ("10.0.0.2", ME), id="in two headers"),
        pytest.param([xff(f"{LIAR}, {CLIENT}")], CLIENT, (ME,), id="what a client wrote is nothing"),
        pytest.param([xff("10.0.0.9, 10.0.0.2")], "10.0.0.9", ("10.0.0.2", ME), id="all trusted"),
        pytest.param([xff(f"{CLIENT}:1234")], CLIENT, (ME,), id="with a port"),
        pytest.param([xff("[2001:db8::1]:1234")], "2001:db8::1", (ME,), id="IPv6 with a port"),
        pytest.param([xff(f"::ffff:{CLIENT}")], CLIENT, (ME,), id="IPv4 dressed as IPv6"),
        pytest.param([xff("a\x01b")], "unknown", (ME,), id="nonsense"),
        pytest.param([xff("")], ME, (), id="nothing"),
        pytest.param([forwarded(f"for={CLIENT};proto=https")], CLIENT, (ME,), id="Forwarded"),
        pytest.param([forwarded(f'for={LIAR}, for="{CLIENT}:80"')], CLIENT, (ME,), id="Forwarded, two"),
        pytest.param([forwarded('For="[2001:db8::1]:80"')], "2001:db8::1", (ME,), id="Forwarded, IPv6"),
        pytest.param([forwarded("for=_hidden")], "_hidden", (ME,), id="Forwarded, a name"),
        pytest.param([forwarded('for="a, b";by=x')], "unknown", (ME,), id="Forwarded, a comma in quotes"),
        pytest.param([forwarded(f"for={LIAR}"), xff(CLIENT)], CLIENT, (ME,), id="both"),
        pytest.param([], ME, (), id="none"),
    ],
)
def test_the_client_is_the_last_untrusted_address(
    headers: list[Header], client: str, hops: tuple[str, ...]
) -> None:
    found = of(*headers)
    assert (found.client, found.hops) == (client, hops)


@pytest.mark.parametrize("header", [xff(CLIENT), forwarded(f"for={CLIENT};proto=https;host=other")])
def test_an_untrusted_peer_is_the_client(header: Header) -> None:
    headers = (b"x-forwarded-proto", b"https"), (b"x-forwarded-host", b"other")
    assert of(header, *headers, peer=LIAR) == Origin(LIAR, (), "http", b"gateway:8000")


def test_the_preferred_header_can_be_configured() -> None:
    both = xff(LIAR), forwarded(f"for={CLIENT}")
    assert of(*both, prefers="forwarded").client == CLIENT
    assert of(*both, prefers="x-forwarded-for").client == LIAR
    assert of(forwarded(f"for={LIAR}"), prefers="x-forwarded-for").client == ME


def test_scheme_and_host_are_those_of_the_client() -> None:
    found = of(xff(CLIENT), (b"x-forwarded-proto", b"HTTPS"), (b"x-forwarded-host", b"api.example"))
    assert (found.scheme, found.host) == ("https", b"api.example")
    found = of(forwarded(f"for={CLIENT};proto=https;host=api.example"))
    assert (found.scheme, found.host) == ("https", b"api.example")
    assert of(xff(CLIENT), (b"x-forwarded-proto", b"gopher")).scheme == "http"


def test_workers_get_the_forwarded_headers() -> None:
    assert of(xff(f"{LIAR}, {CLIENT}, 10.0.0.2"), (b"x-forwarded-proto", b"https")).headers() == [
        (b"x-forwarded-for", b"203.0.113.7, 10.0.0.2, 10.0.0.1"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"gateway:8000"),
    ]
    assert Origin("", (), "http", b"h").headers() == [
        (b"x-forwarded-proto", b"http"),
        (b"x-forwarded-host", b"h"),
    ]


def test_an_endless_header_is_read_from_its_end() -> None:
    found = of(xff(f"{LIAR}," * MAX_CHARS + CLIENT))
    assert (found.client, found.hops) == (CLIENT, (ME,))
