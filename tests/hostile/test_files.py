"""Files and addresses named by an operator and filled by others: keys, an issuer's keys, recordings."""

import asyncio
import asyncio.subprocess
import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from loadtest.fleet import GATEWAY
from tests.support.blackbox.http1_bytes import CHAT, post
from tests.support.blackbox.siege import ESCAPES, Siege, chat, count, siege
from tests.support.patience import patience, until
from tests.support.token_issuers import AUDIENCE, ISSUER, jwks, public, token

NUM_KEYS = count(20_000, 50_000)
TOO_MANY_KEYS = count(120_000, 1_000_000)
MAX_JWKS_BYTES = 1 << 20
DEEP = b"[" * 200_000 + b"]" * 200_000

REDIRECT = web.Response(status=302)
NONSENSE: tuple[web.Response | None, ...] = (
    web.Response(body=b"nonsense"),
    web.Response(body=b'{"keys":[{"kty":"RSA","alg":[]}]}'),
    web.Response(body=b'{"keys":[{"x":' + DEEP + b"}]}"),
    web.Response(body=b'{"keys":[' + b",".join([b'{"kty":"RSA","n":"AQAB","e":"AQAB"}'] * 20_000) + b"]}"),
    web.Response(body=b" " * (8 << 20)),
    web.Response(status=500, body=ESCAPES.encode()),
    REDIRECT,
    None,
)
TOKENS = (
    b"a.b.c",
    b"." * 10_000,
    token(headers={"kid": ESCAPES}),
    token("other-rsa"),
    token(tenant=ESCAPES),
    token(exp=float("inf")),
    token(tenant="x" * 10_000),
)
"""Key sets of which none is the issuer's, or none can be used."""


def key_lines(num: int) -> str:
    """Keys that no client has, each of a tenant of its own."""
    salt, digest = os.urandom(16).hex(), hashlib.sha256(b"x").hexdigest()
    lines = (
        f'{{"id":"{number:012x}","tenant":"t{number}","salt":"{salt}","hash":"{digest}"}}'
        for number in range(num)
    )
    return "\n".join(lines) + "\n"


class Issuer:
    """Issuer that serves a JWKS, or whatever `answer` is; None hangs."""

    def __init__(self) -> None:
        self.answer: web.Response | None = web.Response(body=b'{"keys":[]}')
        self.num_asked = 0
        self.is_over = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        if request.path == "/elsewhere":
            raise AssertionError("a redirect was followed")
        if self.answer is None:
            await self.is_over.wait()
            return web.Response(status=500)
        return web.Response(
            status=self.answer.status, body=self.answer.body, headers={"Location": "/elsewhere"}
        )


class Growing(Issuer):
    """Issuer that serves its key first, and twice as many others as before behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        key = public("rsa")
        body = jwks(key, *({**key, "kid": f"k{number}"} for number in range(2 ** min(self.num_asked, 12))))
        self.num_bytes = len(body)
        return web.Response(body=body)


@asynccontextmanager
async def listening(issuer: Issuer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", issuer.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    finally:
        issuer.is_over.set()
        await runner.cleanup()


async def printed(*command: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of one of our commands."""
    process = await asyncio.create_subprocess_exec(
        *GATEWAY, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(patience(60)):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_invalid_key_files_and_issuers_keep_the_keys_in_use(tmp_path: Path) -> None:
    _, line, reported = await printed("key", "new", "--tenant", "good")
    found = re.search(r"kvg-\S+", reported)
    assert found
    path, issuer = tmp_path / "keys.jsonl", Issuer()
    path.write_text(line)
    issuer.answer = web.Response(body=jwks(public("rsa")))
    async with listening(issuer) as url:
        claims = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE)
        flags = ("--key-file", str(path), "--jwt-keys", url, *claims, "KVGATE_JWT_REFRESH_S=0.1")
        key = (b"Authorization", b"Bearer " + found[0].encode())
        async with siege(*flags, headers=(key,), expected="keeping the previous keys") as under:
            await under.keep_good(files(under, path, line))
            await under.keep_good(issuers(under, issuer))
            issuer.answer = web.Response(body=jwks(public("rsa")))


async def files(under: Siege, path: Path, line: str) -> None:
    """Key files; the good key is in all valid ones, and stays in use with an invalid one."""
    for content in (
        key_lines(NUM_KEYS) + line,
        key_lines(TOO_MANY_KEYS),
        line + ESCAPES + "{" * 100_000,
        line,
    ):
        loads = await under.gateway.total("kvgate_key_file_reloads_total")
        path.write_text(content)

        async def is_read(loads: float = loads) -> bool:
            return await under.gateway.total("kvgate_key_file_reloads_total") > loads

        await until(is_read, f"the file is reloaded: {content[:20]!r}")


async def issuers(under: Siege, issuer: Issuer) -> None:
    for answer in NONSENSE:
        issuer.answer, before = answer, issuer.num_asked
        await until(lambda: issuer.num_asked > before, "the issuer is asked again")  # noqa: B023
    for shown in TOKENS:
        asked = await under.ask(post(chat(), (b"Authorization", b"Bearer " + shown), target=CHAT))
        assert asked.status == 401, asked.body


async def test_a_jwks_that_grows_with_each_fetch_keeps_the_keys_in_use() -> None:
    issuer, good = Growing(), (b"Authorization", b"Bearer " + token())
    async with listening(issuer) as url:
        claims = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE)
        flags = ("--jwt-keys", url, *claims, "KVGATE_JWT_REFRESH_S=0.1")
        async with siege(*flags, headers=(good,), expected="keeping the previous keys") as under:
            await under.keep_good(until(lambda: issuer.num_bytes > MAX_JWKS_BYTES, "the JWKS is too large"))
            asked = issuer.num_asked
            await under.keep_good(until(lambda: issuer.num_asked > asked + 2, "it is fetched again"))


async def test_a_recording_of_nonsense_is_an_error_message(tmp_path: Path) -> None:
    good = '{"at":1.0,"model":"m","worker":"w:1","status":200,"result":"ended","num_tokens":3,"e2e_s":0.1}\n'
    for number, content in enumerate((ESCAPES, good * 3 + ESCAPES, good.replace("3,", "1e400,"))):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(content)
        status, out, err = await printed("replay", str(path))
        assert status in (1, 2), (content, out, err)
        assert "Traceback" not in err and "\x1b" not in out + err, err
