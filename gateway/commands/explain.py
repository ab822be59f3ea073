"""Command `kvgate explain`: shows the routing decision of a running gateway for a request, and its
reasons."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.commands.admin_answer import check_answer, refusal, unreachable
from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import ConfigError
from gateway.runtime.terminal import print_json, print_lines

TIMEOUT_S = 30.0
"""Seconds to wait: a worker may have to tokenize a long prompt."""

COLUMNS = (
    ("overlap", "overlap_tokens"),
    ("uncached", "uncached_tokens"),
    ("booked", "booked_tokens"),
    ("in flight", "in_flight"),
    ("waiting", "waiting"),
)


async def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code. Raises ConfigError for an unreadable file or an unreachable
    gateway."""
    status, answer = await _ask(args, _read(args.prompt_file), dict(map(_header, args.header)))
    if status != 200:
        print_lines(refusal(args.gateway, status, answer, "would answer"))
        return 1
    check_answer(args.gateway, answer, "candidates")
    if args.json:
        print_json(answer)
    else:
        print_lines(*lines(answer))
    return 0


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"--prompt-file {path}: cannot be read: {exc.strerror}") from exc


async def _ask(args: argparse.Namespace, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    url, params = f"{args.gateway.rstrip('/')}/admin/explain", {"path": args.path} if args.path else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=BytesIO(body), params=params, headers=headers) as answer,
        ):
            return answer.status, msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, OSError, *UNREADABLE) as exc:
        raise unreachable(args.gateway, exc) from exc


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text}: give NAME: VALUE")
    return name.strip(), value.strip()


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """Explanation for people: the decision, its reason, and a table of the candidates, the chosen one
    first."""
    tokens = f"{answer['prompt_tokens']} prompt tokens ({answer['tokenized_by']})"
    if answer["not_tokenized"]:
        tokens = f"prompt not tokenized: {answer['not_tokenized']}"
    yield f"{answer['model']}, {tokens}: {answer['worker']}, by {answer['policy']}"
    predicted_s = answer["predicted_ttft_s"]
    yield answer["reason"] + (f"; first token in {predicted_s:.3f} s" if predicted_s is not None else "")
    if disaggregation := answer["disaggregation"]:
        where = disaggregation["prefill_worker"] or "no other worker"
        yield f"prompt computed by {where}: {disaggregation['reason']}"
    if admission := answer["admission"]:
        reason = f": {admission['reason']}" if admission["reason"] else ""
        subject = f"for tenant {admission['tenant']}, priority {admission['priority']}"
        yield f"{subject}: {admission['result']}{reason}"
    yield ""
    yield from candidate_lines(answer)


LEGEND = {
    "cost": "seconds that the policy weighs; the lowest is chosen",
    "start_s": "its usual time before prefill",
    "booked_s": "prefill of requests that are ahead",
    "prefill_s": "prefill of this prompt's uncached tokens",
    "fetch_s": "fetching offloaded blocks",
    "wait_s": "waiting for room",
    "price_s": "what the uncached tokens cost others",
    "running_s": "what running requests cost this one",
    "slowdown_s": "delay of running requests",
    "evict_s": "blocks that it would evict",
    "overlap": "cached prompt tokens",
    "uncached": "prompt tokens to compute",
    "booked": "prompt tokens booked and not computed",
    "kv": "share of its cache in use; ?: it does not report the figure",
    "exact": "whether all of its cache is known",
}


def candidate_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Table of the candidates, the chosen one first, with the columns that have a value, and a legend."""
    titles, *rows = _rows(answer)
    if not rows:
        return
    columns = [[title, *cells] for title, *cells in zip(titles, *rows, strict=True) if _matters(title, cells)]
    yield from _table(list(zip(*columns, strict=True)))
    shown = [column[0] for column in columns]
    yield ""
    for name in shown:
        if name in LEGEND:
            yield f"{name:<10} {LEGEND[name]}"


def _matters(title: str, cells: Sequence[str]) -> bool:
    return title in ("", "worker", "overlap", "exact") or any(cell.strip("0.") for cell in cells)


def _rows(answer: Mapping[str, Any]) -> Iterator[list[str]]:
    some = sorted(answer["candidates"], key=lambda c: (c["worker"] != answer["worker"], c["cost"] or 0.0))
    parts = list(some[0].get("terms", {})) if some else []
    yield ["", "worker", "cost", *parts, *(title for title, _ in COLUMNS), "kv", "exact"]
    for each in some:
        yield [
            ">" if each["worker"] == answer["worker"] else "",
            each["worker"],
            "" if each["cost"] is None else f"{each['cost']:.4g}",
            *(f"{each['terms'][part]:.4f}" for part in parts),
            *("?" if each[field] is None else str(each[field]) for _, field in COLUMNS),
            "?" if each["kv_usage"] is None else f"{each['kv_usage']:.2f}",
            "yes" if each["is_exact"] else "no",
        ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
