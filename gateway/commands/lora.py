"""Command `kvgate adapter`: loads a LoRA adapter on a gateway's workers, unloads it, or lists all."""

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from gateway.commands.admin_answer import check_answer, refusal, unreachable
from gateway.config.reading import ADMIN_KEY_VARIABLE
from gateway.config.secrets import read_key
from gateway.core.decode_errors import UNREADABLE
from gateway.runtime.terminal import print_lines

ADMIN = "http://127.0.0.1:9400"
LIST_TIMEOUT_S = 10.0
NOT_ALL = 1
"""Exit code where a worker failed, or the gateway rejected the request."""


def add(parser: argparse.ArgumentParser) -> None:
    doing = parser.add_subparsers(required=True, metavar="list|load|unload", dest="action")
    listed = doing.add_parser("list", help="adapters, and the workers that have them")
    load = doing.add_parser("load", help="load on all workers of the model, or the named ones")
    load.add_argument("name", metavar="NAME", help="model name for clients")
    load.add_argument("path", metavar="PATH", help="as the worker finds it: a directory there, or on the hub")
    unload = doing.add_parser("unload", help="unload from all workers that have it, or the named ones")
    unload.add_argument("name", metavar="NAME")
    for each in (load, unload):
        each.add_argument("--model", metavar="MODEL", help="base model, if the fleet serves several")
        each.add_argument(
            "--worker", action="append", default=[], metavar="WORKER", help="URL or id; repeatable"
        )
    for each in (listed, load, unload):
        each.add_argument("--gateway", default=ADMIN, metavar="URL", help=f"its admin address ({ADMIN})")
        each.add_argument(
            "--admin-key-file",
            default="",
            metavar="FILE",
            help=f"a key with admin scope, if the gateway requires one; or {ADMIN_KEY_VARIABLE}",
        )


async def run(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Run the command. Returns the exit code. Raises ConfigError for an unreachable gateway."""
    key = read_key(args.admin_key_file, "--admin-key-file") if args.admin_key_file else ""
    key = key or environ.get(ADMIN_KEY_VARIABLE, "")
    status, answer = await _ask(args, {"authorization": f"Bearer {key}"} if key else {})
    if status != 200 and (not isinstance(answer, dict) or "workers" not in answer):
        print_lines(refusal(args.gateway, status, answer))
        return NOT_ALL
    check_answer(args.gateway, answer)
    print_lines(*_lines(answer))
    return 0 if status == 200 else NOT_ALL


async def _ask(args: argparse.Namespace, headers: Mapping[str, str]) -> tuple[int, Any]:
    """Call the admin API; a change has no timeout: the gateway reports workers that take too long."""
    base, method = f"{args.gateway.rstrip('/')}/admin/adapters", "GET"
    options: dict[str, Any] = {}
    if args.action == "load":
        wish = {"adapter": args.name, "path": args.path, "model": args.model, "workers": args.worker}
        method, options = "POST", {"json": wish}
    elif args.action == "unload":
        base, method = f"{base}/{quote(args.name, safe='/')}", "DELETE"
        options = {"params": [*(("worker", w) for w in args.worker), *_model(args.model)]}
    timeout = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S if args.action == "list" else None)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, base, headers=headers, **options) as answer,
        ):
            return answer.status, msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, OSError, *UNREADABLE) as exc:
        raise unreachable(args.gateway, exc) from exc


def _model(model: str | None) -> list[tuple[str, str]]:
    return [("model", model)] if model else []


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    for each in answer.get("adapters", ()):
        unusable = each.get("unusable_at")
        more = f"; no requests go to {', '.join(unusable)}" if unusable else ""
        yield f"{each['name']} ({each['root']}): {', '.join(each['workers'])}{more}"
    for each in answer.get("workers", ()):
        yield f"{each['url']}: {'done' if each['is_done'] else 'FAILED'}: {each['message']}"
