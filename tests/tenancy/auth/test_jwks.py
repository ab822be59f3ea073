"""Public keys from a file or a URL, as they appear and disappear."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.core.errors import ConfigError
from gateway.tenancy.auth import jwks as module
from gateway.tenancy.auth.jwks import Jwks
from tests.support.patience import until
from tests.support.token_issuers import jwks, jwt_verifier, public


class FakeVerifier:
    """Fake consumer of JWKS: accepts any text except a broken one."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def __call__(self, text: bytes) -> None:
        if text == b"broken":
            raise ValueError("not a JWKS")
        self.texts.append(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(b"one")
    return path


async def test_a_file_is_read_at_once_or_rejected(path: Path, tmp_path: Path) -> None:
    used = FakeVerifier()
    Jwks(str(path), used, refresh_s=1.0)
    assert used.texts == [b"one"]
    path.write_bytes(b"broken")
    with pytest.raises(ConfigError, match=r"jwt_keys: .*jwks.json cannot be used: not a JWKS"):
        Jwks(str(path), used, refresh_s=1.0)
    with pytest.raises(ConfigError, match="No such file"):
        Jwks(str(tmp_path / "none"), used, refresh_s=1.0)


async def test_keys_without_tls_are_rejected() -> None:
    with pytest.raises(ConfigError, match="use https"):
        Jwks("http://10.0.0.1/jwks", FakeVerifier(), refresh_s=1.0)
    Jwks("https://10.0.0.1/jwks", FakeVerifier(), refresh_s=1.0)


async def test_a_failed_fetch_keeps_the_previous_keys_and_logs_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = FakeVerifier()
    jwks = Jwks(str(path), used, refresh_s=1.0)
    with caplog.at_level(logging.INFO):
        for text in (b"broken", b"broken", b"two"):
            path.write_bytes(text)
            await jwks.fetch()
    assert used.texts == [b"one", b"two"]
    assert jwks.fetches == {"failed": 2, "fetched": 1}
    assert caplog.text.count("keeping the previous keys: not a JWKS") == 1
    assert caplog.text.count("fetch succeeded again") == 1
    assert "failed" in repr(jwks)


@asynccontextmanager
async def issuer(answers: list[web.Response]) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return answers.pop(0)

    app = web.Application()
    app.add_routes([web.get("/jwks", answer)])
    async with TestServer(app) as server:
        yield str(server.make_url("/jwks"))


@pytest.mark.process
async def test_a_url_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    used = FakeVerifier()
    answers = [web.Response(body=b"one"), web.Response(status=500), web.Response(body=b"x" * 101)]
    async with issuer(answers) as url:
        jwks = Jwks(url, used, refresh_s=1.0)
        assert used.texts == []
        for _ in range(3):
            await jwks.fetch()
    await jwks.fetch()  # no server listens
    assert used.texts == [b"one"] and jwks.fetches == {"fetched": 1, "failed": 3}


@pytest.mark.parametrize("url", ["https://w/\r\nX: y", "https://w\\@evil/", "https://2852039166/jwks"])
def test_an_ambiguous_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="jwt_keys: "):
        Jwks(url, FakeVerifier(), refresh_s=1.0)


async def test_keys_are_refreshed_at_intervals_and_sooner_on_demand(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_INTERVAL_S", 0.0)
    used = FakeVerifier()
    jwks = Jwks(str(path), used, refresh_s=3600.0)
    task = asyncio.get_running_loop().create_task(jwks.keep())
    try:
        for num in range(1, 4):
            await until(lambda num=num: jwks.fetches["fetched"] >= num, seconds=30)  # type: ignore[misc]
            jwks.want()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "nonsense",
    [
        b'{"keys":[{"kty":"RSA","alg":[]}]}',
        b'{"keys":[{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"keys":[{"kty":{}}]}',
    ],
)
async def test_invalid_jwks_keep_the_previous_keys(path: Path, nonsense: bytes) -> None:
    jwt = jwt_verifier(public("rsa"))
    path.write_bytes(jwks(public("rsa"), public("ec")))
    keys = Jwks(str(path), jwt.use, refresh_s=1.0)
    path.write_bytes(nonsense)
    await keys.fetch()
    assert keys.fetches == {"failed": 1} and jwt.num_keys == 2
    with pytest.raises(ConfigError, match="jwt_keys: .* cannot be used"):
        Jwks(str(path), jwt.use, refresh_s=1.0)


@pytest.mark.process
async def test_a_redirect_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    """The last address might be without TLS, where an attacker can put in other keys."""
    used = FakeVerifier()
    answers = [web.Response(body=b"theirs")]
    async with issuer(answers) as other:
        answers.insert(0, web.Response(status=302, headers={"Location": other}))
        keys = Jwks(other, used, refresh_s=1.0)
        await keys.fetch()
    assert used.texts == [] and keys.fetches == {"failed": 1}
    assert "status 302, a redirect; configure the URL that it leads to" in caplog.text


async def test_keys_age_until_a_fetch_succeeds(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    jwks = Jwks(str(path), FakeVerifier(), refresh_s=1.0, clock=lambda: now[0])
    path.write_bytes(b"broken")
    now[0] = 60.0
    await jwks.fetch()
    assert jwks.age_s == 60.0 and "tokens of removed keys still work" in caplog.text
    path.write_bytes(b"two")
    await jwks.fetch()
    assert jwks.age_s == 0.0
