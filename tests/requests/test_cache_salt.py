"""Salts by route; how a body is salted is in test_request.py."""

import pytest

from gateway.core.errors import NotSupported
from gateway.core.route_table import TABLE, Salt, paths
from gateway.requests.parsing import BodyRules, parse_request

BODY = b'{"model":"m","input":"x"}'
UNKNOWN = {"/v1/audio/transcriptions", "/v1/audio/translations", "/v2/embed", "/cohere/v2/chat"}
SGLANG = {"/encode", "/generate"}


def routes(how: Salt) -> list[str]:
    return sorted(paths(route for route in TABLE if route.salt is how))


@pytest.mark.parametrize("path", routes(Salt.NO_CACHE))
def test_a_route_without_a_cache_is_not_salted(path: str) -> None:
    assert parse_request(path, BODY, rules=BodyRules(salt="OURS")).body == BODY


@pytest.mark.parametrize("path", [*routes(Salt.REFUSED), "/mine"])
def test_a_route_that_takes_no_salt_is_rejected_rather_than_shared(path: str) -> None:
    with pytest.raises(NotSupported, match=f"requests to {path} cannot be isolated") as caught:
        parse_request(path, BODY, rules=BodyRules(salt="OURS"))
    assert caught.value.status == 501
    assert parse_request(path, BODY).body == BODY


def test_rejected_routes_are_those_without_salts_in_engines() -> None:
    assert set(routes(Salt.REFUSED)) == UNKNOWN | SGLANG
