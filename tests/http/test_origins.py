"""Host and Origin headers that an admin port accepts."""

import pytest

from gateway.http.origins import JUDGED, AllowedHosts, Misdirected

ALLOWED = AllowedHosts(["gw.example.com", "*.ops.example.com"])
API, METRICS = "/admin/workers", "/metrics"


def status(path: str = API, *, host: str | list[str] | None = "localhost", **more: str | list[str]) -> int:
    """Status of a request, 200 if it is accepted; `origin` and `site` are headers."""
    given = {"Host": host, "Origin": more.get("origin"), "Sec-Fetch-Site": more.get("site")}
    headers = {
        name: [] if (v := given[name]) is None else [v] if isinstance(v, str) else v for name in JUDGED
    }
    try:
        ALLOWED.check(path, headers)
    except Misdirected as exc:
        assert str(exc).isprintable()
        return exc.status
    return 200


@pytest.mark.parametrize(
    ("host", "api", "metrics"),
    [
        ("localhost", 200, 200),
        ("LOCALHOST.:9400", 200, 200),
        ("127.0.0.1:9400", 200, 200),
        ("10.1.2.3", 200, 200),
        ("[::1]:9400", 200, 200),
        ("[fd00::1]", 200, 200),
        ("gw.example.com:9400", 200, 200),
        ("GW.example.com.", 200, 200),
        ("a.ops.example.com", 200, 200),
        ("kvgate:9400", 403, 200),
        ("kvgate.default.svc:9400", 403, 200),
        ("kvgate.default.svc.cluster.local.:9400", 403, 200),
        ("host.lan.internal", 403, 200),
        ("evil.example", 403, 403),
        ("evil.example:9400", 403, 403),
        ("ops.example.com", 403, 403),
        ("gw.example.com.evil.example", 403, 403),
        ("localhost.evil.example", 403, 403),
        ("127.0.0.1.evil.example", 403, 403),
        ("evilops.example.com", 403, 403),
        ("evil.svc.example", 403, 403),
        ("2130706433", 400, 400),
        ("0x7f.1", 400, 400),
        ("127.1", 400, 400),
        ("user@localhost", 400, 400),
        ("localhost:x", 400, 400),
        ("localhost:9400:9400", 400, 400),
        ("::1", 400, 400),
        ("localhost,evil.example", 400, 400),
        ("localhost/evil", 400, 400),
        ("", 400, 400),
        (None, 400, 400),
        (["localhost", "localhost"], 400, 400),
        (["localhost", "evil.example"], 400, 400),
    ],
)
def test_the_host_must_be_a_name_of_the_port(host: str | list[str] | None, api: int, metrics: int) -> None:
    assert (status(API, host=host), status(METRICS, host=host)) == (api, metrics)
    probe = 400 if isinstance(host, list) else 200
    assert (status("/health", host=host), status("/ready", host=host)) == (probe, probe)


@pytest.mark.parametrize(
    ("host", "origin", "wanted"),
    [
        ("localhost:9400", "http://localhost:9400", 200),
        ("localhost:9400", "http://LOCALHOST:9400", 200),
        ("gw.example.com", "https://gw.example.com", 200),
        ("gw.example.com", "http://gw.example.com:80", 200),
        ("[::1]:9400", "http://[::1]:9400", 200),
        ("localhost:9400", "http://localhost:3000", 403),
        ("localhost:9400", "http://localhost", 403),
        ("localhost:9400", "http://127.0.0.1:9400", 403),
        ("localhost:9400", "https://evil.example", 403),
        ("localhost:9400", "null", 403),
        ("localhost:9400", "", 403),
        ("localhost:9400", "file://", 403),
        ("localhost:9400", "chrome-extension://abc", 403),
        ("localhost:9400", "http://localhost:9400, http://localhost:9400", 403),
    ],
)
def test_the_origin_must_be_the_ports_own(host: str, origin: str, wanted: int) -> None:
    for path in (API, METRICS):
        assert status(path, host=host, origin=origin) == wanted


@pytest.mark.parametrize(
    ("site", "wanted"),
    [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("\x07?", 403), ("", 403)],
)
def test_a_cross_site_request_is_rejected(site: str, wanted: int) -> None:
    assert status(API, site=site) == wanted


def test_repeated_headers_are_rejected() -> None:
    same = "http://localhost"
    assert status(API, origin=[same, same]) == 400
    assert status(API, site=["none", "none"]) == 400


@pytest.mark.parametrize("name", ["", "a b", "http://gw", "gw:9400", "*", "*.", "a/b", "[::1]"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError):
        AllowedHosts([name])


def test_an_allowed_address_is_accepted() -> None:
    assert repr(AllowedHosts(["10.0.0.1", "*.b"])) == "AllowedHosts(['10.0.0.1', 'localhost'], ['.b'])"
