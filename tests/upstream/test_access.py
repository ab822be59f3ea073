"""Access to one worker: its key, its TLS name, and its networks."""

from pathlib import Path

import pytest

from gateway.config import Config, config_of, load
from gateway.config.workers import WorkerTable
from gateway.core.errors import ConfigError
from gateway.http.address import Address
from gateway.http.networks import Reachable
from gateway.upstream.access import PLAIN, FleetAccess, WorkerAccess, fleet_access, with_tables

URL = "https://10.0.0.1:8000"


def configured(url: str = URL, **table: str) -> Config:
    return config_of(workers={url: WorkerTable(**table)})


def test_a_key_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    access = fleet_access(configured(key_file=str(tmp_path / "key")), {})
    assert access.of(URL) == WorkerAccess("Bearer sk-1")
    assert access.of("https://10.0.0.2:8000") is PLAIN


def test_a_key_is_read_from_the_environment() -> None:
    assert (
        fleet_access(configured(key_env="ENGINE_KEY"), {"ENGINE_KEY": "sk-2"}).of(URL).authorization
        == "Bearer sk-2"
    )


def test_keys_are_not_shown() -> None:
    assert "sk-2" not in repr(WorkerAccess("Bearer sk-2"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"key_file": "/nowhere/key"},
            r'workers."https://10.0.0.1:8000".key_file: /nowhere/key cannot be read',
        ),
        ({"key_env": "ENGINE_KEY"}, "the variable ENGINE_KEY holds no key"),
        ({"key_file": "a", "key_env": "b"}, "has key_file and key_env; give one of them"),
    ],
)
def test_a_missing_key_is_rejected_at_the_start(table: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fleet_access(configured(**table), {})


def test_a_tls_name_requires_https() -> None:
    with pytest.raises(ConfigError, match="needs an https URL"):
        fleet_access(configured("http://10.0.0.1:8000", server_name="engine"), {})


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://10.0.0.1:8000/a", "engine:8000"),
        ("https://[fd00::1]:8000", "engine:8000"),
        ("https://w", "engine"),
    ],
)
def test_the_configured_name_is_verified(url: str, host: str) -> None:
    assert WorkerAccess(server_name="engine").host(Address.of(url)) == host
    assert PLAIN.host(Address.of(url)) == Address.of(url).netloc


def test_an_address_of_a_dns_name_inherits_its_access() -> None:
    access = FleetAccess({"dns+https://engines:8000": WorkerAccess("Bearer k")})
    access.inherit("https://10.0.0.7:8000", "dns+https://engines:8000", "engines")
    assert access.of("https://10.0.0.7:8000") == WorkerAccess("Bearer k", "engines")


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("http://169.254.169.254", True),
        ("http://[fd00:ec2::254]:80", True),
        ("http://[fe80::1]:80", True),
        ("http://10.0.0.1:8000", False),
        ("http://not-known-yet:8000", False),
        ("unix:/run/w.sock", False),
    ],
)
def test_forbidden_addresses_are_rejected(url: str, is_refused: bool) -> None:
    assert (FleetAccess(reachable=Reachable()).refusal(url) is not None) is is_refused


def test_tables_are_read_like_options_and_options_override_them() -> None:
    declared = configured(engine="sglang", connector="nixl", topology="rack1", agent="h:1")
    config = with_tables(declared)
    assert config.fleet.engine == [f"{URL}=sglang"]
    assert (config.fleet.connector, config.fleet.topology, config.agent.address) == (
        [f"{URL}=nixl"],
        [f"{URL}=rack1"],
        [f"{URL}=h:1"],
    )
    both = config_of(workers=declared.workers, engine=[f"{URL}=vllm"])
    assert dict(spec.rsplit("=", 1) for spec in with_tables(both).fleet.engine) == {URL: "vllm"}
    assert with_tables(config_of()) == config_of()


def test_a_table_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "kvgate.toml"
    file.write_text(f'[worker]\nnetworks = ["10.0.0.0/8"]\n[workers."{URL}"]\nserver_name = "engine"\n')
    assert fleet_access(load({}, {}, file), {}).of(URL).server_name == "engine"
