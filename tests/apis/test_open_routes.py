"""Open routes, and the errors of all others."""

import pytest

from gateway.apis.open_routes import CONTROL, Routes
from gateway.core.errors import MethodNotAllowed
from gateway.core.route_table import ROUTES


def test_inference_is_open_and_engine_control_is_closed() -> None:
    routes = Routes()
    assert set(routes) == set(ROUTES)
    assert not CONTROL & set(ROUTES)
    assert routes.find("POST", "/v1/chat/completions")
    for path in CONTROL:
        assert not routes.find("POST", path)
        error = routes.why_not(path)
        assert (error.status, error.code) == (403, "route_forbidden")
        assert path in error.message and "not open to clients" in error.message


def test_an_unknown_path_is_not_found() -> None:
    error = Routes().why_not("/v2/else")
    assert (error.status, error.code) == (404, "unknown_route")
    assert "check the path" in error.message


@pytest.mark.parametrize("path", ["/metrics", "/admin/workers"])
def test_a_path_of_the_admin_port_is_not_found_with_a_hint(path: str) -> None:
    error = Routes().why_not(path)
    assert (error.status, "on the admin port" in error.message) == (404, True)


def test_a_closed_method_is_rejected_with_the_open_ones() -> None:
    with pytest.raises(MethodNotAllowed, match="accepts POST, not GET"):
        Routes().find("GET", "/v1/embeddings")


def test_configured_routes_are_added_with_their_methods() -> None:
    routes = Routes(["/sleep", "GET /load", "POST /load", "GET /load"])
    assert "/sleep" in routes
    assert routes.find("POST", "/sleep") and routes.find("GET", "/load") and routes.find("POST", "/load")
    with pytest.raises(MethodNotAllowed, match="accepts GET, POST, not DELETE"):
        routes.find("DELETE", "/load")


def test_configured_routes_are_closed() -> None:
    routes = Routes(["/sleep"], ["/generate", "/sleep"])
    assert not routes.find("POST", "/generate")
    assert "is disabled on this gateway" in routes.why_not("/generate").message
    assert routes.why_not("/sleep").status == 403


@pytest.mark.parametrize(
    "entry", ["sleep", "", "FETCH /x", "/x?y=1", "GET  /x", "/a b", "/health", "GET /v1/models"]
)
def test_an_invalid_route_is_rejected(entry: str) -> None:
    with pytest.raises(ValueError, match="neither|by the gateway itself"):
        Routes([entry])
    with pytest.raises(ValueError, match="neither|by the gateway itself"):
        Routes((), [entry])


def test_an_added_route_keeps_its_last_slash_for_workers() -> None:
    routes = Routes(["/mcp/", "GET /load"])
    assert routes.find("POST", "/mcp"), "requests are looked up without it"
    assert routes.to_worker("/mcp", b"/mcp?a=1") == b"/mcp/?a=1"
    assert routes.to_worker("/load", b"/load") == b"/load"
    assert Routes(refused=["/generate/"]).why_not("/generate").status == 403
    with pytest.raises(ValueError, match="/v1/models is served by the gateway itself"):
        Routes(["/v1/models/"])
