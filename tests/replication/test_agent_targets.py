from pathlib import Path
from typing import Any

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.replication.agent_targets import Agents, agents_of

PEM = b"-----BEGIN CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("port", "named", "url", "found"),
    [
        (0, [], "http://w:8000", None),
        (7070, [], "http://w:8000", ("w:7070", False)),
        (7070, [], "http://[fd00::1]:8000", ("[fd00::1]:7070", False)),
        (7070, [], "unix:/run/vllm.sock", ("127.0.0.1:7070", False)),
        (0, ["http://w:8000=a:1"], "http://w:8000", ("a:1", True)),
        (7070, ["http://W:8000/=a:1"], "http://w:8000", ("a:1", True)),
        (7070, ["http://w:8000=a:1"], "http://w:8001", ("w:7070", False)),
        (0, ["unix:/run/vllm.sock=[::1]:1"], "unix:/run/vllm.sock", ("[::1]:1", True)),
    ],
)
def test_the_agent_of_a_worker_has_its_host(
    port: int, named: list[str], url: str, found: tuple[str, bool] | None
) -> None:
    assert agents_of(config_of(agent_port=port, agent=named)).of(url) == found


@pytest.mark.parametrize(
    "text", ["", "a:1", "http://w:8000", "http://w:8000=", "http://w:8000=a", "http://w:8000=a:0", "w=a:1"]
)
def test_an_invalid_agent_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="^agent: '.*' is not WORKER=HOST:PORT"):
        agents_of(config_of(agent=[text]))


def test_tls_and_token_are_read_from_files(tmp_path: Path) -> None:
    ca, cert, key, token = (tmp_path / name for name in ("ca", "cert", "key", "token"))
    for file in (ca, cert, key):
        file.write_bytes(PEM + file.name.encode())
    token.write_text("secret\n")
    found = agents_of(config_of(agent_ca_file=str(ca), agent_token_file=str(token)))
    assert found.tls is not None and (found.tls.ca, found.tls.cert) == (PEM + b"ca", None)
    assert found.token == "secret" and "secret" not in repr(found)
    both: dict[str, Any] = {"agent_ca_file": str(ca), "agent_cert_file": str(cert)}
    tls = agents_of(config_of(**both, agent_cert_key_file=str(key))).tls
    assert tls is not None and (tls.cert, tls.key) == (PEM + b"cert", PEM + b"key")
    read = agents_of(config_of(**both)).tls
    assert read is not None and read.key == PEM + b"cert"
    assert agents_of(config_of()) == Agents()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent_cert_file": "x"}, "agent_cert_file: needs agent_ca_file"),
        ({"agent_ca_file": "x", "agent_cert_key_file": "y"}, "agent_cert_key_file: needs agent_cert_file"),
        ({"agent_ca_file": "/nowhere"}, "agent_ca_file: /nowhere cannot be read: No such file"),
        ({"agent_ca_file": "/dev/null"}, "/dev/null is not PEM"),
        ({"agent_token_file": "/nowhere"}, "agent_token_file: /nowhere cannot be read"),
    ],
)
def test_unusable_files_are_rejected(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agents_of(config_of(**options))
