"""Configuration of the agent, from flags only: KVGATE_ variables are the gateway's."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from gateway.config.options import option
from gateway.config.reading import ConfigReader
from gateway.core.errors import ConfigError


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine_url: Annotated[
        str,
        option("Base URL of the engine, as it is reached from here; all its DP ranks are served.", "URL"),
    ] = "http://127.0.0.1:8000"
    engine: Annotated[
        str,
        option("Name of the engine (vllm, sglang, trtllm, ...); by default detected from its answers."),
    ] = ""
    listen: Annotated[
        str,
        option(
            "HOST:PORT that serves gateways; loopback by default, closed to networks. Port 0: any free one.",
            "address",
        ),
    ] = "127.0.0.1:7070"
    events_port: Annotated[
        int,
        option(
            "Port at which the engine publishes KV events (plus DP rank) if it does not report one.",
            "port",
            ge=1,
            le=65535,
        ),
    ] = 5557
    replay_port: Annotated[
        int,
        option(
            "Port at which such an engine replays events (plus DP rank); 0: it does not.",
            "port",
            ge=0,
            le=65535,
        ),
    ] = 0
    engine_key_file: Annotated[
        str, option("File with the API key that the engine was started with; used for probes.", "path")
    ] = ""
    engine_ca_file: Annotated[
        str,
        option(
            "CA certificates (PEM) that verify an engine with an https URL, in place of the system's.",
            "path",
        ),
    ] = ""
    probe_interval_s: Annotated[
        float,
        option("Interval of probes of the engine; a restart is noticed within it.", "seconds", gt=0),
    ] = 1.0
    probe_timeout_s: Annotated[float, option("Timeout of one probe.", "seconds", gt=0)] = 5.0
    offload_blocks: Annotated[
        int,
        option(
            "Limit on cached blocks that the agent keeps of one rank in all its offload tiers (CPU, disk, "
            "remote), which no engine declares; 0: 16 times what it declares for its GPU.",
            "blocks",
            ge=0,
        ),
    ] = 0
    tls_cert_file: Annotated[
        str,
        option(
            "Certificate chain (PEM) for gateways; with it, the port speaks TLS only. Reloaded when it "
            "changes.",
            "path",
        ),
    ] = ""
    tls_key_file: Annotated[
        str,
        option("Private key of the certificate, unencrypted PEM; default: in the same file.", "path"),
    ] = ""
    client_ca_file: Annotated[
        str,
        option(
            "CA certificates (PEM) that verify gateways, which then must present a client certificate.",
            "path",
        ),
    ] = ""
    token_file: Annotated[
        str,
        option(
            "File with a token that gateways must send (their --agent-token-file). Use TLS: without it, the "
            "token can be read on the network.",
            "path",
        ),
    ] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], option("Log level on stderr.")] = (
        "info"
    )


def load(flags: Mapping[str, Any]) -> AgentConfig:
    """Configuration from the parsed flags. Raises ConfigError that names the flag."""
    reader = ConfigReader(AgentConfig)
    reader.flags(flags)
    config = reader.checked()
    address_of(config.listen, "--listen")
    for name in ("tls_key_file", "client_ca_file"):
        if getattr(config, name) and not config.tls_cert_file:
            raise ConfigError(f"--{name.replace('_', '-')}: needs --tls-cert-file")
    return config


def address_of(text: str, option: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[host]:port". Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host if ":" not in host else ""
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"{option}: '{text}' is not HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)
