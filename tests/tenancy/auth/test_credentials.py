"""What the guard goes by, from a configuration."""

import asyncio
from pathlib import Path

import pytest

from gateway.config import Config
from gateway.core.errors import ConfigError
from gateway.http.messages import HttpRequest
from gateway.runtime.tasks import Tasks
from gateway.tenancy.auth import credentials as module
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.credentials import Keeper
from gateway.tenancy.auth.key_format import line_of
from tests.tenancy.auth.issuers import AUDIENCE, ISSUER, jwks, public, token

KEY, OTHER = (make_key(bytes([n] * 6), bytes(32)) for n in range(2))


def ask(keeper: Keeper, key: bytes = KEY) -> tuple[str, str | None]:
    assert keeper.guard
    who = keeper.guard.ask(HttpRequest("POST", b"/", [(b"x-api-key", key)]), None)
    return who.tenant, who.salt


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(line_of(KEY, bytes(16), "acme"))
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s" * 32 + "\n")
    return path


def test_nobody_is_asked_unless_it_is_configured() -> None:
    assert Keeper(Config()).guard is None
    assert repr(Keeper(Config())) == "Keeper(None)"


def test_keys_and_salts(keys: Path, secret: Path) -> None:
    assert ask(Keeper(Config(key_file=str(keys)))) == ("acme", None)
    salted = Config(key_file=str(keys), tenant_salt=True, tenant_salt_file=str(secret))
    tenant, salt = ask(Keeper(salted))
    assert tenant == "acme" and salt and len(salt) == 43
    alone = Keeper(Config(tenant_salt=True, tenant_salt_file=str(secret)))
    assert alone.guard and not alone.guard.wants_key
    assert ask(alone)[1] not in (salt, None)


def test_tenants_of_a_group_share_a_salt(keys: Path, secret: Path) -> None:
    lines = [line_of(KEY, bytes(16), "a"), line_of(OTHER, bytes(16), "b")]
    config = Config(key_file=str(keys), tenant_salt=True, tenant_salt_file=str(secret))
    keys.write_text("\n".join(lines))
    keeper = Keeper(config)
    assert ask(keeper)[1] != ask(keeper, OTHER)[1]
    keys.write_text("\n".join([*lines, '{"group":"g","tenants":["a","b"]}']))
    keeper = Keeper(config)
    assert ask(keeper)[1] == ask(keeper, OTHER)[1]


def test_a_short_secret_is_refused(secret: Path) -> None:
    secret.write_text("hunter2")
    with pytest.raises(ConfigError, match=r"holds 7 characters.*openssl rand -hex 32") as caught:
        Keeper(Config(tenant_salt=True, tenant_salt_file=str(secret)))
    assert "hunter2" not in str(caught.value)


def test_what_needs_something_else() -> None:
    with pytest.raises(ConfigError, match="tenant_salt: needs tenant_salt_file.*openssl rand"):
        Keeper(Config(tenant_salt=True))
    with pytest.raises(ConfigError, match="admin_key: needs admin_api_keys or key_file"):
        Keeper(Config(admin_key="all"))
    with pytest.raises(ConfigError, match="mask_cached_tokens: expose_headers"):
        Keeper(Config(mask_cached_tokens=True, expose_headers=True))


def test_an_admin_api_that_no_key_opens_is_told(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = Config(key_file=str(keys), admin_key="changes")
    Keeper(config)
    assert f"admin_key is changes, and no key in {keys} has admin scope" in caplog.text
    caplog.clear()
    keys.write_text(line_of(KEY, bytes(16), "acme", admin=True))
    Keeper(config)
    assert not caplog.text


async def test_tokens_are_taken_beside_keys(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(public("ec")))
    said = {"jwt_keys": str(file), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    for needed in ("jwt_issuer", "jwt_audience"):
        with pytest.raises(ConfigError, match=f"jwt_keys: needs {needed}"):
            Keeper(Config(**(said | {needed: ""})))  # type: ignore[arg-type]
    for config in (Config(**said), Config(key_file=str(keys), **said)):  # type: ignore[arg-type]
        keeper = Keeper(config)
        assert keeper.guard and keeper.guard.wants_key
        assert ask(keeper, token("ec"))[0] == "acme"
    assert ask(keeper)[0] == "acme"
    assert keeper.jwt and keeper.jwt._known
    await keeper.reload()
    assert not keeper.jwt._known  # the groups of their tenants may be others


async def test_the_file_is_followed(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.0)
    keeper, tasks = Keeper(Config(key_file=str(keys))), Tasks()
    keeper.start(tasks)
    try:
        other = keys.with_suffix(".new")
        other.write_text(line_of(OTHER, bytes(16), "b"))
        other.replace(keys)
        async with asyncio.timeout(30):
            while not (keeper.guard and keeper.guard.ring and keeper.guard.ring.find(OTHER)):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        await tasks.stop()


async def test_it_is_read_anew_when_asked(keys: Path) -> None:
    keeper = Keeper(Config(key_file=str(keys)))
    keys.write_text(line_of(OTHER, bytes(16), "b"))
    await keeper.reload()
    assert ask(keeper, OTHER)[0] == "b"
    keys.write_text("{}")
    with pytest.raises(ConfigError):
        await keeper.reload()
    assert ask(keeper, OTHER)[0] == "b"
    await Keeper(Config()).reload()  # nothing to read
