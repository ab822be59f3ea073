"""Options behind reverse proxies: a trusted proxy must be a network, and a base path a path."""

import pytest

from gateway.config import load
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("trusted_proxies", ["everybody"]),
        ("forwarded_header", "via"),
        ("base_path", "llm"),
        ("base_path", "/llm/"),
        ("base_path", "/a b"),
    ],
)
def test_an_invalid_trusted_proxy_or_base_path_is_rejected(field: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=field.replace("_", "[-_]")):
        load({field: wrong}, {})


def test_no_proxy_is_trusted_by_default() -> None:
    config = load({}, {}).server
    assert (config.trusted_proxies, config.proxy_protocol, config.base_path) == ([], False, "")
    config = load(
        {"trusted_proxies": ["10.0.0.0/8", "unix"], "proxy_protocol": True, "base_path": "/a/b"}, {}
    ).server
    assert config.proxy_protocol
