from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.config import Config
from gateway.core.decision import Prompt
from gateway.core.errors import Unauthorized
from gateway.core.fleet import Fleet
from gateway.http.messages import HttpRequest
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.policies.least_load import LeastLoad
from gateway.routing.router import Router
from gateway.runtime.tasks import Tasks
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.credentials import Keeper
from gateway.tenancy.auth.key_format import line_of
from gateway.tenancy.auth.metrics import KeysCollector
from tests.tenancy.auth.issuers import AUDIENCE, ISSUER, jwks, public


def page(keeper: Keeper) -> str:
    registry = CollectorRegistry()
    registry.register(KeysCollector(keeper))
    return generate_latest(registry).decode()


def test_nothing_is_told_where_nobody_is_asked() -> None:
    assert page(Keeper(Config())) == ""


def test_keys_for_tokens(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    path.write_bytes(jwks(public("ec")))
    keeper = Keeper(Config(jwt_keys=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE))
    assert keeper.jwks
    keeper.jwks.fetches["failed"] = 2
    told = page(keeper)
    assert "kvgate_jwt_keys 1.0" in told and "kvgate_keys" not in told
    assert 'kvgate_jwt_key_fetches_total{result="failed"} 2.0' in told


async def test_what_salts_cost(tmp_path: Path) -> None:
    secret, tasks = tmp_path / "secret", Tasks()
    secret.write_text("s" * 32)
    keeper = Keeper(Config(tenant_salt=True, tenant_salt_file=str(secret)))
    assert "kvgate_salt" not in page(keeper)
    router = Router(
        fleet=Fleet(),
        index=MemoryIndex(),
        assumed=AssumedIndex(),
        policy=LeastLoad(),
        tokenize=lambda request: Prompt(),
    )
    keeper.start(tasks, router)
    assert keeper.witness and router.witnesses.decided == [keeper.witness.decided]
    keeper.witness.given_up.num_tokens, keeper.witness.given_up.num_seen = 5, 9
    keeper.witness.num_left_out = 2
    told = page(keeper)
    assert "kvgate_salt_given_up_tokens_total 5.0" in told
    assert "kvgate_salt_prompt_tokens_total 9.0" in told
    assert "kvgate_salt_left_out_requests_total 2.0" in told
    await tasks.stop()


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
