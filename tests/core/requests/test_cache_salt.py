"""Which requests can be salted; how a body is, is in test_request.py."""

import pytest

from gateway.core.errors import NotSupported
from gateway.core.requests.cache_salt import SALTED, UNSALTED
from gateway.core.requests.request import ROUTES, parse_request

BODY = b'{"model":"m","input":"x"}'
UNKNOWN = {"/v1/audio/transcriptions", "/v1/audio/translations", "/v2/embed", "/cohere/v2/chat"}
SGLANG = {"/encode", "/generate"}


@pytest.mark.parametrize("path", sorted(UNSALTED))
def test_what_reads_no_cache_is_not_salted(path: str) -> None:
    assert parse_request(path, BODY, salt="OURS").body == BODY


@pytest.mark.parametrize("path", sorted(UNKNOWN | SGLANG | {"/mine"}))
def test_what_takes_no_salt_is_refused_rather_than_shared(path: str) -> None:
    with pytest.raises(NotSupported, match=f"what goes to {path} cannot be salted") as caught:
        parse_request(path, BODY, salt="OURS")
    assert caught.value.status == 501
    assert parse_request(path, BODY).body == BODY


def test_each_route_is_thought_of() -> None:
    assert ROUTES.keys() == SALTED | UNSALTED | UNKNOWN | SGLANG
    assert not SALTED & UNSALTED
