"""Commands `kvgate status`, `top` and `why`: the fleet and a decision of a running gateway, for people.

The table is plain text, redrawn by two escape sequences: a library for terminals would be a dependency of
every installation for a table of one screen.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from gateway.commands.admin_answer import check_answer, refusal, unreachable
from gateway.commands.explain import candidate_lines
from gateway.config.reading import ADMIN_KEY_VARIABLE
from gateway.config.secrets import read_key
from gateway.core.decode_errors import UNREADABLE
from gateway.runtime.terminal import print_json, print_lines

ADMIN = "http://127.0.0.1:9400"
TIMEOUT_S = 10.0
EVERY_S = 1.0
CLEAR = "\x1b[H\x1b[J"
"""Cursor to the top left, and the rest of the screen erased (ECMA-48)."""
NOT_WELL = 1
"""Exit code where a worker is not active, or the gateway answers with an error."""
TITLES = ("worker", "state", "model", "stream", "running", "waiting", "kv", "in flight", "accuracy", "reason")


def add_status(parser: argparse.ArgumentParser, *, watches: bool) -> None:
    """Add the flags of `status` and `top`, which always watches."""
    _add_address(parser)
    parser.add_argument("--json", action="store_true", help="the gateway's whole answer, as JSON")
    if watches:
        parser.set_defaults(watch=True)
    else:
        parser.add_argument("--watch", action="store_true", help="print again every second")


def add_why(parser: argparse.ArgumentParser) -> None:
    _add_address(parser)
    parser.add_argument("id", metavar="ID", help="decision_id of the request log, or x-kvgate-decision")
    parser.add_argument("--json", action="store_true", help="the decision record, as JSON")


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gateway", default=ADMIN, metavar="URL", help=f"its admin address ({ADMIN})")
    words = f"a key with admin scope, if the gateway requires one; or {ADMIN_KEY_VARIABLE}"
    parser.add_argument("--admin-key-file", default="", metavar="FILE", help=words)


async def run_status(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Print the fleet once, or every second with `watch`. Returns the exit code. Raises ConfigError for an
    unreachable gateway."""
    while True:
        status, answer = await _get(args, "/admin/workers", environ)
        if status != 200:
            return _refused(args, status, answer)
        check_answer(args.gateway, answer, "endpoints")
        answer["key_files"] = await _key_files(args, environ)
        is_drawn = args.watch and sys.stdout.isatty() and not args.json
        if args.json:
            print_json(answer)
        else:
            print_lines(*fleet_lines(answer), start=CLEAR if is_drawn else "")
        if not args.watch:
            return 0 if is_well(answer) else NOT_WELL
        await asyncio.sleep(EVERY_S)


async def run_why(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Print a decision. Returns the exit code. Raises ConfigError for an unreachable gateway."""
    status, record = await _get(args, f"/admin/decisions/{quote(args.id, safe='')}", environ)
    if status != 200:
        return _refused(args, status, record)
    check_answer(args.gateway, record, "model", "worker", "outcome")
    if args.json:
        print_json(record)
    else:
        print_lines(*decision_lines(record))
    return 0


async def _get(args: argparse.Namespace, path: str, environ: Mapping[str, str]) -> tuple[int, Any]:
    key = read_key(args.admin_key_file, "--admin-key-file") if args.admin_key_file else ""
    key = key or environ.get(ADMIN_KEY_VARIABLE, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(args.gateway.rstrip("/") + path, headers=headers) as answer,
        ):
            return answer.status, msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE) as exc:
        raise unreachable(args.gateway, exc) from exc


async def _key_files(args: argparse.Namespace, environ: Mapping[str, str]) -> list[Any]:
    """The key files, as /admin/keys has them; none of a gateway that is older than this command."""
    status, answer = await _get(args, "/admin/keys", environ)
    return list(answer.get("files", ())) if status == 200 and isinstance(answer, dict) else []


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _refused(args: argparse.Namespace, status: int, answer: Any) -> int:
    print_lines(refusal(args.gateway, status, answer))
    return NOT_WELL


# for people --------------------------------------------------------------------------------------


def is_well(answer: Mapping[str, Any]) -> bool:
    """True if all endpoints have joined, all workers are active or in slow start, and key files are used as
    they are."""
    if any(file["error"] for file in answer["key_files"]):
        return False
    workers = [worker for endpoint in answer["endpoints"] for worker in endpoint["workers"]]
    return all(endpoint["state"] == "joined" for endpoint in answer["endpoints"]) and all(
        worker["state"] in ("active", "slow_start") for worker in workers
    )


def fleet_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """A sum, and a table with a row for each worker, and for each endpoint that has not joined; and the key
    files that cannot be used any more."""
    for file in answer["key_files"]:
        if file["error"]:
            age, error = _age(file["age_s"]), file["error"]
            yield f"keys of {file['path']} are {age} old, and revoked ones still work: {error}"
    for model, num in answer.get("in_panic", {}).items():
        yield f"too few workers of {model} are healthy: {num} with late probes get requests too"
    rows = [row for endpoint in answer["endpoints"] for row in _rows(endpoint)]
    states = [row[1] for row in rows]
    counted = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    yield f"{len(rows)} workers: {counted}" if rows else "no workers"
    if not rows:
        return
    yield ""
    yield from table([TITLES, *rows])
    yield ""
    yield "stream    how much of its cache is known; exact: all of it"
    yield "kv        share of its cache in use; ?: it does not report the figure"
    yield "accuracy  share of right predictions of cached tokens lately"


def _rows(endpoint: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    if not endpoint["workers"]:
        error = endpoint["last_error"] or ""
        yield (endpoint["url"], endpoint["state"], *[""] * 7, error)
    for worker in endpoint["workers"]:
        accuracy = worker["predictions"]["exact_share"]
        why = worker["reason"] or (worker["blind"] or {}).get("reason") or endpoint["last_error"] or ""
        yield (
            worker["id"],
            worker["state"],
            ",".join(worker["models"]),
            worker["stream"] or "none",
            *("?" if worker[name] is None else str(worker[name]) for name in ("running", "waiting")),
            "?" if worker["kv_usage"] is None else f"{worker['kv_usage']:.0%}",
            str(worker["in_flight"] + worker["remote_in_flight"]),
            "" if accuracy is None else f"{accuracy:.0%}",
            why,
        )


def decision_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A decision record: the choice, what was predicted, what came of it, and the candidates."""
    yield f"{record['model']} -> {record['worker']}, by {record['policy']}: {record['reason']}"
    predicted = record["predicted_ttft_s"]
    first = "" if predicted is None else f"; first token predicted in {predicted * 1000:.0f} ms"
    yield f"predicted: {record['overlap_tokens']} of {record['prompt_tokens']} prompt tokens cached{first}"
    yield f"outcome: {_outcome(record['outcome'])}"
    if record["attempt"] > 1:
        yield f"this was attempt {record['attempt']}"
    yield ""
    yield from candidate_lines(record)


def _outcome(outcome: Mapping[str, Any] | None) -> str:
    if outcome is None:
        return "not known yet: the request runs"
    cached, ttft_s = outcome["reported_cached_tokens"], outcome["ttft_s"]
    words = f"{outcome['result']}, status {outcome['status']}"
    words += "" if cached is None else f"; the engine reports {cached} cached tokens"
    return words + ("" if ttft_s is None else f"; first token after {ttft_s * 1000:.0f} ms")


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with aligned columns; columns without a value are left out."""
    titles, *rest = rows
    columns = [[title, *cells] for title, *cells in zip(titles, *rest, strict=True) if any(cells)]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
