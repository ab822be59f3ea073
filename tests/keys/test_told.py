from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.config import Config
from gateway.core.errors import Unauthorized
from gateway.core.http import HttpRequest
from gateway.core.keylines import line_of
from gateway.core.keys import make_key
from gateway.keys.keeper import Keeper
from gateway.keys.told import KeysCollector


def page(keeper: Keeper) -> str:
    registry = CollectorRegistry()
    registry.register(KeysCollector(keeper))
    return generate_latest(registry).decode()


def test_nothing_is_told_where_nobody_is_asked() -> None:
    assert page(Keeper(Config())) == ""


def test_refusals_keys_and_loads(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(line_of(make_key(bytes(6), bytes(32)), bytes(16), "acme"))
    keeper = Keeper(Config(key_file=str(path)))
    assert keeper.guard and keeper.file
    with pytest.raises(Unauthorized):
        keeper.guard.ask(HttpRequest("POST", b"/", []), None)
    keeper.file.reload()
    told = page(keeper)
    assert 'kvgate_auth_refusals_total{reason="missing_api_key"} 1.0' in told
    assert "kvgate_keys 1.0" in told
    assert 'kvgate_key_loads_total{result="loaded"} 1.0' in told
    assert 'kvgate_key_loads_total{result="refused"} 0.0' in told
