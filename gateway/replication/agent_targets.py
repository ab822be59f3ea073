"""Addresses and credentials of workers' agents."""

import asyncio
import socket
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config import Config
from gateway.config.secrets import read_key
from gateway.core.errors import ConfigError
from gateway.http.address import Address
from gateway.http.networks import Reachable, is_literal
from gateway.http.url import host_port


@dataclass(frozen=True, slots=True)
class AgentTls:
    """PEM contents: the trusted CA, and the client's key and certificate."""

    ca: bytes
    key: bytes | None = None
    cert: bytes | None = None


@dataclass(frozen=True, slots=True)
class Agents:
    """Agents of workers: `port` on each worker's host (0: none), or `named` by the worker's URL. Those that
    the operator did not name are at addresses that are `reachable`."""

    port: int = 0
    named: dict[str, str] = field(default_factory=dict)
    tls: AgentTls | None = None
    token: str | None = field(default=None, repr=False)
    reachable: Reachable = field(default_factory=Reachable, repr=False, compare=False)

    def of(self, url: str) -> tuple[str, bool] | None:
        """Return HOST:PORT of a worker's agent, and whether the operator named it."""
        if (target := self.named.get(url)) is not None:
            return target, True
        if not self.port:
            return None
        host = Address.of(url).host
        return (f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"), False

    async def resolve(self, target: str) -> str:
        """Resolve the HOST:PORT of an agent to its allowed addresses, a target of gRPC. gRPC would resolve a
        name again at each connection. Raises OSError, also where no address is allowed."""
        host, port = host_port(target)
        found = [host] if is_literal(host) else await _addresses(host, port)
        refusals = [] if target in self.named.values() else [self.reachable.refusal(each) for each in found]
        if refusals and None not in refusals:
            raise OSError(None, f"{host}: {refusals[0]}")
        allowed = (
            [each for each, why in zip(found, refusals, strict=True) if why is None] if refusals else found
        )
        return _grpc_target(allowed, port)


NO_AGENTS = Agents()


def agents_of(config: Config) -> Agents:
    """Return the agents of the configuration. Raises ConfigError."""
    agent = config.agent
    ca, cert, key = agent.ca_file, agent.cert_file, agent.cert_key_file
    if cert and not ca:
        raise ConfigError("agent_cert_file: needs agent_ca_file")
    if key and not cert:
        raise ConfigError("agent_cert_key_file: needs agent_cert_file")
    tls = AgentTls(_read(ca, "agent_ca_file")) if ca else None
    if tls and cert:
        key_option = "agent_cert_key_file" if key else "agent_cert_file"
        tls = AgentTls(tls.ca, _read(key or cert, key_option), _read(cert, "agent_cert_file"))
    token = read_key(agent.token_file, "agent_token_file") if agent.token_file else None
    reachable = Reachable(config.worker.ip_networks)
    return Agents(agent.port, dict(map(_named, agent.address)), tls, token, reachable)


async def _addresses(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _grpc_target(addresses: list[str], port: int) -> str:
    """Return addresses as one target; of both families, all are written as IPv6."""
    if not any(":" in each for each in addresses):
        return "ipv4:" + ",".join(f"{each}:{port}" for each in addresses)
    mapped = [each if ":" in each else f"::ffff:{each}" for each in addresses]
    return "ipv6:" + ",".join(f"[{each.replace('%', '%25')}]:{port}" for each in mapped)


def _named(text: str) -> tuple[str, str]:
    url, _, target = text.rpartition("=")
    try:
        host_port(target)
        return Address.of(url).url, target
    except ValueError as exc:
        raise ConfigError(f"agent: '{text}' is not WORKER=HOST:PORT: {exc}") from exc


def _read(file: str, option: str) -> bytes:
    try:
        content = Path(file).expanduser().read_bytes()
    except OSError as exc:
        raise ConfigError(f"{option}: {file} cannot be read: {exc.strerror}") from exc
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{option}: {file} is not PEM")
    return content
