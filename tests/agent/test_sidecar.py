"""The agent assembled; tests/stories/test_agent.py has it between engines and gateways."""

import pytest

from gateway.agent.config import AgentConfig
from gateway.agent.sidecar import Sidecar, is_open_to_all
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine_url": "127.0.0.1:8000"}, "--engine-url: '127.0.0.1:8000' is not an http"),
        ({"engine_key_file": "/nowhere"}, "--engine-key-file: /nowhere cannot be read"),
        ({"token_file": "/nowhere"}, "--token-file: /nowhere cannot be read"),
        ({"tls_cert_file": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"engine_ca_file": "/nowhere"}, "/nowhere cannot be read: No such file"),
    ],
)
def test_a_wrong_option_is_rejected_before_anything_is_opened(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Sidecar(AgentConfig(**options), "test")


@pytest.mark.parametrize(
    ("listen", "options", "is_open"),
    [
        ("127.0.0.1:7070", {}, False),
        ("localhost:7070", {}, False),
        ("[::1]:7070", {}, False),
        ("0.0.0.0:7070", {}, True),
        ("worker.example:7070", {}, True),
        ("0.0.0.0:7070", {"tls_cert_file": "c"}, True),
        ("0.0.0.0:7070", {"tls_cert_file": "c", "client_ca_file": "ca"}, False),
        ("0.0.0.0:7070", {"token_file": "t"}, False),
    ],
)
def test_an_address_open_to_all_hosts_is_recognized(
    listen: str, options: dict[str, str], is_open: bool
) -> None:
    assert is_open_to_all(AgentConfig(listen=listen, **options)) is is_open  # type: ignore[arg-type]


@pytest.mark.process
async def test_an_engine_that_does_not_answer_has_no_ranks() -> None:
    sidecar = Sidecar(AgentConfig(engine_url="http://127.0.0.1:9", listen="127.0.0.1:0"), "test")
    await sidecar.start()
    try:
        assert sidecar.port and sidecar._find(0) is None
    finally:
        await sidecar.stop()
