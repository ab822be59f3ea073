"""Credentials made from a configuration, and their reload."""

from pathlib import Path

import pytest

from gateway.config import config_of
from gateway.core.errors import ConfigError
from gateway.http.messages import HttpRequest
from gateway.runtime.tasks import Tasks
from gateway.tenancy.auth import credentials as module
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.credentials import Credentials
from gateway.tenancy.auth.key_format import format_key_record
from tests.support.patience import until
from tests.support.token_issuers import AUDIENCE, ISSUER, jwks, public, token

KEY, OTHER = (make_key(bytes([n] * 6), bytes(32)) for n in range(2))


def ask(credentials: Credentials, key: bytes = KEY) -> tuple[str, str | None]:
    assert credentials.authenticator
    caller = credentials.authenticator.ask(HttpRequest("POST", b"/", [(b"x-api-key", key)]), None)
    return caller.tenant, caller.salt


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(format_key_record(KEY, bytes(16), "acme"))
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s" * 32 + "\n")
    return path


def test_no_authentication_unless_configured() -> None:
    assert Credentials(config_of()).authenticator is None
    assert repr(Credentials(config_of())) == "Credentials(None)"


def test_keys_and_salts(keys: Path, secret: Path) -> None:
    assert ask(Credentials(config_of(key_file=str(keys)))) == ("acme", None)
    salted = config_of(key_file=str(keys), tenant_salt_file=str(secret))
    tenant, salt = ask(Credentials(salted))
    assert tenant == "acme" and salt and len(salt) == 43
    alone = Credentials(config_of(tenant_salt_file=str(secret)))
    assert alone.authenticator and not alone.authenticator.wants_key
    assert ask(alone)[1] not in (salt, None)


def test_tenants_of_a_group_share_a_salt(keys: Path, secret: Path) -> None:
    lines = [format_key_record(KEY, bytes(16), "a"), format_key_record(OTHER, bytes(16), "b")]
    config = config_of(key_file=str(keys), tenant_salt_file=str(secret))
    keys.write_text("\n".join(lines))
    credentials = Credentials(config)
    assert ask(credentials)[1] != ask(credentials, OTHER)[1]
    keys.write_text("\n".join([*lines, '{"group":"g","tenants":["a","b"]}']))
    credentials = Credentials(config)
    assert ask(credentials)[1] == ask(credentials, OTHER)[1]


def test_a_short_secret_is_refused(secret: Path) -> None:
    secret.write_text("hunter2")
    with pytest.raises(ConfigError, match=r"holds 7 characters.*openssl rand -hex 32") as caught:
        Credentials(config_of(tenant_salt_file=str(secret)))
    assert "hunter2" not in str(caught.value)


def test_options_that_depend_on_others_are_rejected_without_them() -> None:
    with pytest.raises(ConfigError, match="admin_auth: needs admin_key_file or key_file"):
        Credentials(config_of(admin_auth="all"))
    with pytest.raises(ConfigError, match="mask_cached_tokens: expose_headers"):
        Credentials(config_of(mask_cached_tokens=True, expose_headers=True))


def test_an_admin_api_without_an_admin_key_is_logged(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(key_file=str(keys), admin_auth="changes")
    Credentials(config)
    assert f"admin_auth is changes but no key in {keys} has admin scope" in caplog.text
    caplog.clear()
    keys.write_text(format_key_record(KEY, bytes(16), "acme", admin=True))
    Credentials(config)
    assert not caplog.text


async def test_tokens_are_accepted_beside_keys(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(public("ec")))
    declared_identity = {"jwt_keys": str(file), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    for needed in ("jwt_issuer", "jwt_audience"):
        with pytest.raises(ConfigError, match=f"jwt_keys: needs {needed}"):
            Credentials(config_of(**(declared_identity | {needed: ""})))
    for config in (config_of(**declared_identity), config_of(key_file=str(keys), **declared_identity)):
        credentials = Credentials(config)
        assert credentials.authenticator and credentials.authenticator.wants_key
        assert ask(credentials, token("ec"))[0] == "acme"
    assert ask(credentials)[0] == "acme"
    assert credentials.jwt and credentials.jwt._known
    await credentials.reload()
    assert not credentials.jwt._known  # the groups of their tenants may be others


async def test_the_key_file_is_followed(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.0)
    credentials, tasks = Credentials(config_of(key_file=str(keys))), Tasks()
    credentials.start(tasks)
    try:
        other = keys.with_suffix(".new")
        other.write_text(format_key_record(OTHER, bytes(16), "b"))
        other.replace(keys)
        await until(
            lambda: (
                credentials.authenticator
                and credentials.authenticator.ring
                and credentials.authenticator.ring.find(OTHER)
            ),
            seconds=30,
        )
    finally:
        await tasks.stop()


async def test_keys_are_reloaded_on_request(keys: Path) -> None:
    credentials = Credentials(config_of(key_file=str(keys)))
    keys.write_text(format_key_record(OTHER, bytes(16), "b"))
    await credentials.reload()
    assert ask(credentials, OTHER)[0] == "b"
    keys.write_text("{}")
    with pytest.raises(ConfigError):
        await credentials.reload()
    assert ask(credentials, OTHER)[0] == "b"
    await Credentials(config_of()).reload()  # nothing to read
