"""Command `kvgate index`: shows the index that gateways share in Redis, verifies and drops it."""

import argparse
import asyncio
from collections import Counter
from itertools import groupby

import aiohttp

from gateway.commands.admin_answer import unreachable
from gateway.commands.index_survey import Survey, SurveyRow, table
from gateway.config import Config
from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError
from gateway.redis.client import LOST, UnusableRedis, open_client
from gateway.redis.options import redis_of
from gateway.runtime.terminal import print_lines

TRIES = 5
PAUSE_S = 0.3
"""Changes are on their way while two places are read."""

DIFFERENT = 1
"""Exit code of `verify` where something does not fit."""


async def run(args: argparse.Namespace, config: Config) -> int:
    """The exit code. Raises ConfigError."""
    options = redis_of(config)
    if options is None:
        raise ConfigError("index: give --redis, the URL of the server that the gateways share")
    client = open_client(options)
    try:
        return await _ACTIONS[args.action](args, Survey(client, options))
    except UnusableRedis:
        raise
    except LOST as exc:
        raise ConfigError(f"redis: {options.where}: {cause_of(exc)}") from exc
    finally:
        await client.aclose()


async def _show(args: argparse.Namespace, survey: Survey) -> int:
    await survey.check()
    rows = await survey.rows()
    for (root, model), some in groupby(rows, key=lambda row: (row.root, row.model)):
        print_lines(f"model {model or '(not named)'}, root {root:016x}")
        print_lines(*table(list(some)))
    if not rows:
        print_lines("no workers in Redis")
    return 0


async def _top(args: argparse.Namespace, survey: Survey) -> int:
    await survey.check()
    rows = await survey.rows()
    print_lines(*table(sorted(rows, key=lambda row: -len(row.blocks or ()))[: args.num]))
    saved = Counter({run: (workers - 1) * run[1] for run, workers in survey.shared.items() if workers > 1})
    for (head, num), _ in saved.most_common(args.num):
        print_lines(f"run {head:016x}: {num} blocks, at {survey.shared[head, num]} workers")
    return 0


async def _drop(args: argparse.Namespace, survey: Survey) -> int:
    if args.all == bool(args.name):
        raise ConfigError("index drop: name a worker, or give --all")
    if args.all:
        print_lines(f"dropped {await survey.drop_all()} keys")
        return 0
    await survey.check()
    num = await survey.drop_worker(args.name)
    print_lines(f"dropped {args.name}, in {num} edges; a gateway that reads its events publishes it again")
    return 0


async def _verify(args: argparse.Namespace, survey: Survey) -> int:
    await survey.check()
    for attempt in range(1, TRIES + 1):
        rows = [row for row in await survey.rows() if args.name in (None, row.worker)]
        faults = await _faults(rows, args.gateway)
        if attempt == TRIES or not any(faults.values()):
            break
        await asyncio.sleep(PAUSE_S)
    for row in rows:
        print_lines(f"{row.worker}: {faults[row.worker] or f'{len(row.blocks or ())} blocks, consistent'}")
    if args.name and not rows:
        raise ConfigError(f"no worker in Redis is named '{args.name}'; `kvgate index show` names the workers")
    return DIFFERENT if any(faults.values()) else 0


async def _faults(rows: list[SurveyRow], gateway: str | None) -> dict[str, str]:
    faults: dict[str, str] = {row.worker: "; ".join(row.faults) for row in rows}
    if gateway:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            for row in rows:
                faults[row.worker] = faults[row.worker] or await _compare(session, gateway.rstrip("/"), row)
    return faults


async def _compare(session: aiohttp.ClientSession, gateway: str, row: SurveyRow) -> str:
    """How a gateway's own index differs. With `--index redis` only who reads a worker's events has one."""
    try:
        async with session.get(f"{gateway}/admin/index/{row.worker}/blocks") as answer:
            text = await answer.text()
            if answer.status != 200:
                return f"{gateway} answers {answer.status}: {text[:200]}"
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise unreachable(gateway, exc) from exc
    own, there = set(map(int, text.split())), row.blocks or set()
    if row.published and not own:
        return ""
    missing, more = len(own - there), len(there - own)
    return (
        f"{missing} blocks of the gateway are missing in Redis, {more} are only in Redis"
        if missing or more
        else ""
    )


_ACTIONS = {"show": _show, "top": _top, "drop": _drop, "verify": _verify}
