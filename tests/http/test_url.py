"""URLs with a single meaning: a table of odd ones, each rejected with its reason."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.address import Address, worker_url
from gateway.http.url import MAX_CHARS, Url, check_base_path, check_host, host_port, netloc_of, shown

LABEL = "a" * 63


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000),
        ("http://W", "w", 80),
        ("https://w", "w", 443),
        ("http://w:1", "w", 1),
        ("http://w:65535", "w", 65535),
        ("http://a_b-c.d", "a_b-c.d", 80),
        ("http://engine.ns.svc.cluster.local.:8000", "engine.ns.svc.cluster.local.", 8000),
        ("http://xn--bcher-kva.example", "xn--bcher-kva.example", 80),
        (f"http://{LABEL}.{LABEL}.x", f"{LABEL}.{LABEL}.x", 80),
        ("http://[0:0::0:1]:8000", "::1", 8000),
        ("http://[FD00::1]", "fd00::1", 80),
        ("http://[fe80::1%eth0]:8000", "fe80::1%eth0", 8000),
        ("http://1.example", "1.example", 80),
        ("http://0x.example", "0x.example", 80),
    ],
)
def test_an_unambiguous_url_is_accepted(url: str, host: str, port: int) -> None:
    address = Address.of(url)
    assert (address.host, address.port) == (host, port)
    assert Address.of(address.url) == address


REFUSED = [
    # control characters, and those that parsers strip
    ("http://w:8000\r\nX: y", r"U\+000D"),
    ("http://w\n", r"U\+000A"),
    ("http://w\t:8000", r"U\+0009"),
    (" http://w", r"U\+0020.* at position 0"),
    ("http://w ", r"U\+0020"),
    ("http://w\x00", r"U\+0000"),
    ("http://w\x7f", r"U\+007F"),
    ("http://w\u00a0", r"U\+00A0"),
    ("http://w\u200b", r"U\+200B"),
    ("http://w\u2028", r"U\+2028"),
    ("http:\\\\w", "backslash"),
    ("http://10.0.0.1\\@evil", "backslash"),
    ("unix:/run/\x00x", r"U\+0000"),
    # credentials, queries, fragments
    ("http://user:pw@w", "without query, fragment or credentials"),
    ("http://@w", "without query, fragment or credentials"),
    ("http://10.0.0.1@evil:80", "without query, fragment or credentials"),
    ("http://w/?x=1", "without query, fragment or credentials"),
    ("http://w?", "without query, fragment or credentials"),
    ("http://w#x", "without query, fragment or credentials"),
    ("http://w/#@x", "without query, fragment or credentials"),
    # ports
    ("http://w:", "'' is not a port"),
    ("http://w:0", "'0' is not a port"),
    ("http://w:080", "'080' is not a port"),
    ("http://w:65536", "'65536' is not a port"),
    ("http://w:99999999999", "is not a port"),
    ("http://w:+80", r"'\+80' is not a port"),
    ("http://w:-1", "'-1' is not a port"),
    ("http://w:8_0", "'8_0' is not a port"),
    ("http://w:0x50", "'0x50' is not a port"),
    ("http://w:port", "'port' is not a port"),
    ("http://w:\uff18\uff10", "is not ASCII"),
    ("http://w:80:80", "brackets"),
    # hosts
    ("http://", "names no host"),
    ("http://:8000", "names no host"),
    ("http:///path", "names no host"),
    ("http://.", "is not a host name"),
    ("http://a..b", "empty label"),
    ("http://.a", "empty label"),
    ("http://a..", "empty label"),
    ("http://-a", "is not a host name"),
    ("http://a-", "is not a host name"),
    ("http://a!b", "is not a host name"),
    ("http://a,b", "is not a host name"),
    ("http://*", "is not a host name"),
    (f"http://{'a' * 64}", "a label of 64 characters; 63 are the most"),
    (f"http://{'.'.join(['a' * 63] * 4)}", "over 253 characters"),
    ("http://w%2eexample", "percent-encoded"),
    ("http://%31%30.0.0.1", "percent-encoded"),
    ("http://b\u00fccher.example", r"is not ASCII; write an international name in its ASCII form \(xn--"),
    ("http://\uff57", "is not ASCII"),
    ("http://1\u30020.0.1", "is not ASCII"),
    # IPv4 in other notations
    ("http://2852039166", "is not an IPv4 address"),
    ("http://0xa9fea9fe", "is not an IPv4 address"),
    ("http://0xa9.0xfe.0xa9.0xfe", "is not an IPv4 address"),
    ("http://0251.0376.0251.0376", "is not an IPv4 address"),
    ("http://127.1", "is not an IPv4 address"),
    ("http://10.0.0.256", "is not an IPv4 address"),
    ("http://10.0.0.1.", "is not an IPv4 address"),
    ("http://1.2.3.4.5", "is not an IPv4 address"),
    ("http://engine.0x7f", "is not an IPv4 address"),
    ("http://0x", "is not an IPv4 address"),
    # IPv6
    ("http://::1", "brackets"),
    ("http://[::1", "brackets"),
    ("http://[::1]8000", "brackets"),
    ("http://[]", "is not an IPv6 address"),
    ("http://[g::1]", "is not an IPv6 address"),
    ("http://[10.0.0.1]", "is not an IPv6 address"),
    ("http://[v1.x]", "is not an IPv6 address"),
    ("http://[::ffff:169.254.169.254]", "write 169.254.169.254"),
    ("http://[::ffff:a9fe:a9fe]", "write 169.254.169.254"),
    ("http://[fd00::1%eth0]", "only link-local addresses have a zone"),
    ("http://[fe80::1%]", "only link-local addresses have a zone"),
    ("http://[fe80::1%25eth0]", "only link-local addresses have a zone"),
    ("http://[fe80::1%e/th]", "brackets"),
    # paths
    ("http://w/%2e%2e/x", "percent-encoding in a base path"),
    ("http://w/a%20b", "percent-encoding in a base path"),
    ("http://w/../x", "empty segment"),
    ("http://w/a/./b", "empty segment"),
    ("http://w//a", "empty segment"),
    ('http://w/"', "must be percent-encoded"),
    ("http://w/<x>", "must be percent-encoded"),
    # other schemes
    ("", "is not an http"),
    ("w:8000", "is not an http"),
    ("//w", "is not an http"),
    ("http:w", "is not an http"),
    ("http:/w", "is not an http"),
    ("ftp://w", "is not an http"),
    ("file:///etc/passwd", "is not an http"),
    ("gopher://w", "is not an http"),
    ("tcp://w:1", "is not an http"),
    # sockets
    ("unix:", "absolute path"),
    ("unix:run.sock", "absolute path"),
    ("unix://host/run.sock", "absolute path"),
    ("unix:/run/../etc/x.sock", "absolute path"),
    ("unix:/run/./x.sock", "absolute path"),
    ("unix:/run//x.sock", "absolute path"),
    ("unix:/run/", "absolute path"),
    ("unix:/run/%2e%2e/x", "is not decoded"),
    ("unix:/run/x?y", "is not decoded"),
    ("unix:/" + "a" * 107, "over 107 characters"),
    ("dns+unix:/x", "has no DNS name"),
    ("dns+ftp://w", "is not an http"),
    ("dns+http://w\r\n", r"U\+000D"),
    ("http://w/" + "a" * MAX_CHARS, f"over {MAX_CHARS} characters"),
]


@pytest.mark.parametrize(("url", "words"), REFUSED)
def test_an_ambiguous_url_is_rejected_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        worker_url(url)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 400
    assert "pw" not in message, "a password is no message's"


@given(
    st.text(string.printable + "\u00e4\u200b\x00", max_size=40), st.sampled_from(["", "http://", "unix:/"])
)
def test_any_text_is_one_url_or_a_value_error(text: str, scheme: str) -> None:
    try:
        kept = worker_url(scheme + text)
    except ValueError as exc:
        assert str(exc).isprintable()
        return
    assert worker_url(kept) == kept and kept.isascii() and kept.isprintable()


def test_a_url_of_another_kind_keeps_its_parts() -> None:
    url = Url.of("rediss://me:a%40b@R:6380/2?x=1")
    assert (url.scheme, url.host, url.port, url.path, url.query) == ("rediss", "r", 6380, "/2", "x=1")
    assert (url.userinfo, url.netloc, Url.of("http://[::1]/").netloc) == ("me:a%40b", "r:6380", "[::1]")
    for wrong in ("nothing", "://x", "1http://w", "http://w#f"):
        with pytest.raises(ValueError):
            Url.of(wrong)


@pytest.mark.parametrize(
    ("text", "place"),
    [("w:1", ("w", 1)), ("[::1]:7070", ("::1", 7070)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_a_host_with_its_port_is_split(text: str, place: tuple[str, int]) -> None:
    assert host_port(text) == place


@pytest.mark.parametrize(
    "text", ["w", "w:", "w:0", ":1", "::1:7070", "w:1/x", "w:1\n", "u@w:1", "a b:1", "[::1]"]
)
def test_an_invalid_host_with_a_port_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        host_port(text)


def test_credentials_are_not_shown_in_messages() -> None:
    assert shown("http://me:secret@w/x") == "http://...@w/x"
    assert shown("a\r\n\x1bb") == "a\\r\\n\\x1bb"
    assert len(shown("x" * 5000)) < 200


def test_hosts_and_base_paths_are_checked_separately() -> None:
    assert check_host("A.Example") == "a.example"
    check_base_path("")
    check_base_path("/a/B~(1)")


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("::", "[::]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ("0.0.0.0", "0.0.0.0:80"),
        ("h.example", "h.example:80"),
    ],
)
def test_a_host_and_its_port_are_written_as_in_a_url(host: str, written: str) -> None:
    assert netloc_of(host, 80) == written
    assert host_port(written)[1] == 80
