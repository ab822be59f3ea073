"""Action `kvgate key revoke`: removes a key from a key file, and asks gateways if they use the new file.

    key file ─► without the key's line, in place of the old one ─► each `--admin-url`: reload, digest equal?

A gateway that cannot read its file any more keeps the previous keys, and one that sees another file (a mount
of the single file, another copy) never hears of the change. Only its answer proves the revocation.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.config.flags import seconds
from gateway.config.reading import ADMIN_KEY_VARIABLE
from gateway.config.secrets import read_key
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.runtime.file_replacement import replace_file
from gateway.runtime.terminal import print_lines
from gateway.tenancy.auth.key_format import parse_key_file

NOT_CONFIRMED = 1
"""Exit code where a gateway does not use the new file."""
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.2
WAIT_S = 10.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of the key, as listed and as in the log")
    parser.add_argument(
        "--admin-url",
        "--gateway",
        dest="gateways",
        action="append",
        default=[],
        metavar="URL",
        help="admin address of a gateway, which must confirm that it uses the new file; repeatable",
    )
    words = f"a key with admin scope, if a gateway requires one; or {ADMIN_KEY_VARIABLE}"
    parser.add_argument("--admin-key-file", default="", metavar="FILE", help=words)
    parser.add_argument(
        "--wait-s",
        type=seconds,
        default=WAIT_S,
        metavar="DURATION",
        help=f"time for the file to reach each gateway ({WAIT_S:.0f})",
    )


def run(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Revoke a key. Returns the exit code: 0 where each gateway that was named has confirmed it. Raises
    ConfigError, with the file unchanged."""
    key = read_key(args.admin_key_file, "--admin-key-file") if args.admin_key_file else ""
    key = key or environ.get(ADMIN_KEY_VARIABLE, "")
    digest = remove(args.key_file, args.id)
    print_lines(f"key {args.id} removed from {args.key_file}")
    if not args.gateways:
        print_lines(
            f"warning: no gateway has confirmed it, and one that cannot read {args.key_file} keeps the key. "
            "Give each one's --admin-url, or compare `digests` of its GET /admin/keys with "
            f"{digest} (sha256sum {args.key_file})",
            to=sys.stderr,
        )
        return 0
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return asyncio.run(_confirmed_by_all(args, headers, digest))


def remove(file: str, key_id: str) -> str:
    """Remove a key's line, and return the SHA-256 of the new file; comments and other lines stay. Raises
    ConfigError, with the file unchanged."""
    try:
        path = Path(file).expanduser()
        return sha256(replace_file(path, lambda content: without(content, file, key_id))).hexdigest()
    except OSError as exc:
        raise ConfigError(
            f"revoke: {file} cannot be replaced: {exc.strerror}; the key is not revoked"
        ) from exc


def without(content: bytes, file: str, key_id: str) -> bytes:
    """Content of a key file without the line of a key. Raises ConfigError."""
    try:
        text = content.decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"--key-file {file}: cannot be read: it is not UTF-8") from exc
    if key_id.encode() not in parse_key_file(text, file).entries:
        raise ConfigError(f"revoke: {file} has no key with the id '{key_id}'; `kvgate key list` shows all")
    return "".join(line for line in text.splitlines(keepends=True) if not _is_key(line, key_id)).encode()


def _is_key(line: str, key_id: str) -> bool:
    try:
        return bool(msgspec.json.decode(line).get("id") == key_id)
    except (*UNREADABLE, AttributeError):  # a comment, or an empty line
        return False


# confirmation ------------------------------------------------------------------------------------


async def _confirmed_by_all(args: argparse.Namespace, headers: Mapping[str, str], digest: str) -> int:
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        asked = [_doubt(session, url.rstrip("/"), args.id, digest, args.wait_s) for url in args.gateways]
        doubts = await asyncio.gather(*asked)
    for url, doubt in zip(args.gateways, doubts, strict=True):
        if doubt is None:
            print_lines(f"{url}: confirmed, the key is revoked there")
        else:
            print_lines(f"{url}: NOT confirmed, the key may still work there: {doubt}", to=sys.stderr)
    return 0 if doubts == [None] * len(doubts) else NOT_CONFIRMED


async def _doubt(
    session: aiohttp.ClientSession, url: str, key_id: str, digest: str, wait_s: float
) -> str | None:
    """Reason why a gateway may still know the key; None once all of its processes use the new file."""
    end = time.monotonic() + wait_s
    while True:
        try:
            status, reloaded = await _answer(session, "POST", f"{url}/admin/keys/reload", json={})
            refusal = None if status == 200 else _message(status, reloaded)
            status, answer = await _answer(session, "GET", f"{url}/admin/keys")
            doubts = list(doubts_of(answer, key_id, digest)) if status == 200 else [_message(status, answer)]
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            refusal, doubts = None, [f"not a gateway's admin address: {str(exc) or 'no answer'}"]
        if not doubts:
            return None
        if time.monotonic() >= end:
            return refusal or doubts[0]
        await asyncio.sleep(POLL_S)


def doubts_of(answer: Any, key_id: str, digest: str) -> Iterator[str]:
    """Reasons in a gateway's `GET /admin/keys` why the key may still work there."""
    files = answer.get("files") if isinstance(answer, dict) else None
    if files is None:
        yield "it is older than this command, and does not report which file it uses"
        return
    if not files:
        yield "it has no key file"
        return
    if not any(each["digests"] == [digest] for each in files):
        faults = [f"{each['path']}: {each['error']}" for each in files if each["error"]]
        used = ", ".join(f"{each['path']} ({each['age_s']:.0f} s old)" for each in files)
        yield "; ".join(faults) or f"it uses another version of the file, or another file: {used}"
    elif any(each["id"] == key_id for each in answer["keys"]):
        yield f"it knows the key '{key_id}' from another file"


async def _answer(session: aiohttp.ClientSession, method: str, url: str, **more: Any) -> tuple[int, Any]:
    """Status and JSON of an answer. Raises ValueError where it is no JSON."""
    async with session.request(method, url, **more) as answer:
        try:
            return answer.status, msgspec.json.decode(await answer.read())
        except UNREADABLE as exc:
            raise ValueError("the answer is not JSON") from exc


def _message(status: int, answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message", "") if isinstance(error, dict) else ""
    return f"it answers {status}: {message}"
