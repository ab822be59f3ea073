import pytest

from gateway.epp.destination import endpoint_of, is_in, spoofed, subset_of


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://10.0.0.1/base", "10.0.0.1:443"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://[2001:DB8::0:1]:8000", "[2001:db8::1]:8000"),
        ("http://worker-0:8000", None),
    ],
)
def test_a_worker_has_its_address_as_envoy_takes_it(url: str, endpoint: str | None) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize(
    ("hint", "endpoint", "expected"),
    [
        (["10.0.0.1:1"], "10.0.0.1:1", True),
        (["10.0.0.1:1"], "10.0.0.1:2", False),
        ("10.0.0.1:1,10.0.0.2:1", "10.0.0.2:1", True),
        (" 10.0.0.1 ", "10.0.0.1:9", True),
        (["::1"], "[::1]:80", True),
        (["[::1]"], "[::1]:80", True),
        (["[0:0::1]:80"], "[::1]:80", True),
        ("[::1]:81", "[::1]:80", False),
        ([], "10.0.0.1:1", False),
        ("", "10.0.0.1:1", False),
        (3.0, "10.0.0.1:1", False),
        ([3.0, "x"], "10.0.0.1:1", False),
    ],
)
def test_a_subset_names_endpoints_in_three_forms(hint: object, endpoint: str, expected: bool) -> None:
    subset = subset_of(hint)
    assert subset is not None and is_in(subset, endpoint) is expected


def test_no_hint_is_no_limit() -> None:
    assert subset_of(None) is None


def test_spoofed_headers_are_counted() -> None:
    assert spoofed([(b"x-gateway-destination-endpoint", b"a"), (b"accept", b"*/*")]) == 1
