from pathlib import Path
from typing import Any

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.http.networks import Reachable
from gateway.replication import agent_targets
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


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    monkeypatch.setattr(agent_targets, "_addresses", resolve)


METADATA = "169.254.169.254"


@pytest.mark.parametrize(
    ("target", "addresses", "connected"),
    [
        ("10.0.0.1:7", (), "ipv4:10.0.0.1:7"),
        ("[fd00::1]:7", (), "ipv6:[fd00::1]:7"),
        ("w:7", ("10.0.0.1", "10.0.0.2"), "ipv4:10.0.0.1:7,10.0.0.2:7"),
        ("w:7", ("fd00::1", "10.0.0.1"), "ipv6:[fd00::1]:7,[::ffff:10.0.0.1]:7"),
        ("w:7", (METADATA, "10.0.0.1"), "ipv4:10.0.0.1:7"),
        ("named:7", (METADATA,), f"ipv4:{METADATA}:7"),
    ],
)
async def test_an_agent_is_connected_to_at_its_allowed_addresses(
    monkeypatch: pytest.MonkeyPatch, target: str, addresses: tuple[str, ...], connected: str
) -> None:
    resolving_to(monkeypatch, *addresses)
    assert await Agents(named={"http://w:1": "named:7"}).resolve(target) == connected


@pytest.mark.parametrize(
    ("target", "addresses", "words"),
    [
        (f"{METADATA}:7", (), "metadata service"),
        ("w:7", (METADATA, "fe80::1"), "w: 169.254.169.254 is not an address for a worker"),
        ("w:7", ("192.0.2.1",), "192.0.2.1 is in none of --worker-networks"),
    ],
)
async def test_an_agent_without_an_allowed_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, target: str, addresses: tuple[str, ...], words: str
) -> None:
    resolving_to(monkeypatch, *addresses)
    agents = Agents(port=7, reachable=Reachable(["10.0.0.0/8"]))
    with pytest.raises(OSError, match=words) as found:
        await agents.resolve(target)
    assert found.value.strerror


async def test_names_are_resolved_by_the_system() -> None:
    assert "127.0.0.1" in await Agents().resolve("localhost:7")


def test_networks_of_workers_are_those_of_their_agents() -> None:
    reachable = agents_of(config_of(worker_networks=["10.0.0.0/8"])).reachable
    assert reachable.refusal("10.0.0.1") is None
    assert reachable.refusal("127.0.0.1") is not None
