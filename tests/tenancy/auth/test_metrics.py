from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.config import config_of
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
from gateway.tenancy.auth.credentials import Credentials
from gateway.tenancy.auth.key_format import format_key_record
from gateway.tenancy.auth.metrics import KeysCollector
from tests.support.token_issuers import AUDIENCE, ISSUER, jwks, public


def page(credentials: Credentials) -> str:
    registry = CollectorRegistry()
    registry.register(KeysCollector(credentials))
    return generate_latest(registry).decode()


def test_without_authentication_there_are_no_metrics() -> None:
    assert page(Credentials(config_of())) == ""


def test_metrics_of_jwks(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    path.write_bytes(jwks(public("ec")))
    credentials = Credentials(config_of(jwt_keys=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE))
    assert credentials.jwks
    credentials.jwks.fetches["failed"] = 2
    page_text = page(credentials)
    assert "kvgate_jwks_age_seconds " in page_text
    assert "kvgate_jwks_keys 1.0" in page_text and "kvgate_api_keys" not in page_text
    assert 'kvgate_jwks_fetches_total{result="failed"} 2.0' in page_text


async def test_metrics_of_the_cost_of_salts(tmp_path: Path) -> None:
    secret, tasks = tmp_path / "secret", Tasks()
    secret.write_text("s" * 32)
    credentials = Credentials(config_of(tenant_salt_file=str(secret)))
    assert "kvgate_tenant_salt" not in page(credentials)
    router = Router(
        fleet=Fleet(),
        index=MemoryIndex(),
        assumed=AssumedIndex(),
        policy=LeastLoad(),
        tokenize=lambda request: Prompt(),
    )
    credentials.start(tasks, router)
    assert credentials.salt_observer and router.observers.decided == [credentials.salt_observer.decided]
    credentials.salt_observer.salt_cost.num_tokens, credentials.salt_observer.salt_cost.num_seen = 5, 9
    credentials.salt_observer.num_left_out = 2
    page_text = page(credentials)
    assert "kvgate_tenant_salt_lost_tokens_total 5.0" in page_text
    assert "kvgate_tenant_salt_examined_tokens_total 9.0" in page_text
    assert "kvgate_tenant_salt_skipped_requests_total 2.0" in page_text
    await tasks.stop()


def test_metrics_of_rejections_keys_and_reloads(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(format_key_record(make_key(bytes(6), bytes(32)), bytes(16), "acme"))
    credentials = Credentials(config_of(key_file=str(path)))
    assert credentials.authenticator and credentials.file
    with pytest.raises(Unauthorized):
        credentials.authenticator.ask(HttpRequest("POST", b"/", []), None)
    credentials.file.reload()
    page_text = page(credentials)
    assert 'kvgate_auth_rejections_total{reason="missing_api_key"} 1.0' in page_text
    assert "kvgate_api_keys 1.0" in page_text
    assert 'kvgate_key_file_reloads_total{result="loaded"} 1.0' in page_text
    assert 'kvgate_key_file_reloads_total{result="rejected"} 0.0' in page_text


def test_metrics_of_the_age_of_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(format_key_record(make_key(bytes(6), bytes(32)), bytes(16), "ops", admin=True))
    credentials = Credentials(config_of(admin_key_file=str(path)))
    assert 'kvgate_key_file_age_seconds{source="admin_key_file"} ' in page(credentials)
