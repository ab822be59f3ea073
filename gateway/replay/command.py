"""Command `kvgate replay`: plays a trace in virtual time, once for each policy, and prints a table of
results."""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from gateway.config.flags import Parser, positive_seconds, seconds
from gateway.core.errors import ConfigError
from gateway.replay.charts import page
from gateway.replay.formats.table import FORMATS, listing
from gateway.replay.formats.times import UNITS
from gateway.replay.play import (
    BOUNDS,
    Calibrated,
    ExcludedRequests,
    ReplayRun,
    RunResult,
    Trace,
    TraceAccount,
    calibrate,
    library_of,
    play_all,
)
from gateway.replay.profile import H100_8B, PROFILES, Profile, profile_of
from gateway.replay.progress import Progress
from gateway.replay.results import Slo, table
from gateway.runtime.terminal import print_lines

NUM_WORKERS = 8
MAX_WORKERS, MAX_COUNT = 10_000, 1 << 40
SLO = Slo()
ROWS = ("expected_ttft", "least_load", "prefix_overlap", "round_robin")
"""Policies that are played where none is named: the default and its baselines."""


def replay_parser() -> Parser:
    """Parser of `kvgate replay`."""
    parser = Parser(prog="kvgate replay", description=__doc__)
    add_arguments(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    try:
        return run(replay_parser().parse_args(arguments))
    except ConfigError as exc:
        print_lines(f"kvgate: {exc}", to=sys.stderr)
        return 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", type=Path, metavar="FILE", help="requests that were recorded; may be packed: gz, xz, bz2")
    _add_reading(parser)
    add("--speed", type=_positive, default=1.0, metavar="TIMES", help="as fast as recorded (default 1)")
    add("--limit", type=_count, metavar="COUNT", help="only the first requests")
    add(
        "--tokenizer",
        default="",
        metavar="DIR",
        help="tokenizer of texts, with tokenizer.json (default: a small one)",
    )
    add("--workers", type=_workers, metavar="COUNT", help=f"default {NUM_WORKERS}; a recording's own")
    profiles = ", ".join(PROFILES)
    add(
        "--profile",
        default="",
        metavar="NAME",
        help=f"of each worker: {profiles}, or a TOML file (default: h100-8b, or as learnt)",
    )
    add(
        "--kv-blocks",
        type=_count,
        default=0,
        metavar="COUNT",
        help="blocks of each cache (default: the profile's)",
    )
    add("--block-size", type=_count, default=0, metavar="TOKENS", help="default: the trace's, or 16")
    add("--policy", action="append", metavar="NAME", help=f"a row each (default: {', '.join(ROWS)})")
    add("--policy-file", default="", metavar="FILE", help="Python file with policies, as for `kvgate serve`")
    add(
        "--no-bounds",
        action="store_true",
        help=f"leave out the bounds {' and '.join(BOUNDS)}",
    )
    _add_rest(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of how a trace is read."""
    add = parser.add_argument
    add("--format", choices=["auto", *FORMATS], metavar="NAME", default="auto", help="default: detected")
    add("--formats", action=ListFormats, nargs=0, help="list the formats, and exit")
    add(
        "--trace-block-size",
        type=_count,
        metavar="TOKENS",
        help="tokens of each of the trace's hashes (default: detected)",
    )
    add("--trace-unit", choices=list(UNITS), help="unit of the trace's clock (default: detected)")
    add(
        "--rate",
        type=_positive,
        metavar="RPS",
        help="requests per second, for traces without times (default 1)",
    )
    add(
        "--strict",
        action="store_true",
        help="refuse a trace with a line that cannot be read, or with an empty prompt",
    )


class ListFormats(argparse.Action):
    """`--formats`: prints the table of formats, without a trace."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_lines(*listing())
        parser.exit()


def _add_rest(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max-batched-tokens", type=_count, metavar="COUNT", help="tokens of a step (default: the profile's)"
    )
    add("--max-num-seqs", type=_count, metavar="COUNT", help="running at once (default: the profile's)")
    add(
        "--event-delay-s",
        type=seconds,
        default=0.005,
        metavar="DURATION",
        help="delay of KV events (default 0.005)",
    )
    add("--seed", type=int, default=1, metavar="NUMBER", help="seed of random choices (default 1)")
    add(
        "--slo-ttft-s",
        type=positive_seconds,
        default=SLO.ttft_s,
        metavar="DURATION",
        help="goodput's (default 2)",
    )
    add(
        "--slo-tpot-s",
        type=positive_seconds,
        default=SLO.tpot_s,
        metavar="DURATION",
        help="goodput's (default 0.05)",
    )
    add("--processes", type=_count, default=os.cpu_count() or 1, metavar="COUNT", help="runs at once")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--picture", type=Path, metavar="FILE", help="draw TTFT and hit rates there, as an HTML page")


def run(args: argparse.Namespace) -> int:
    """Run with parsed arguments. Returns the exit code. Raises ConfigError."""
    for path in filter(None, (args.json, args.picture)):
        _check_writable(path)
    progress = Progress()
    try:
        runs, known = runs_of(args, progress)
        results = play_all(runs, args.processes, progress)
    finally:
        progress.end()
    print_lines(heading(runs[0], results[0]))
    shown = [known.measured, *results] if known else results
    print_lines(*table([result.summary for result in shown]))
    notes = [*skipped(results[0].origin), *excluded(results[0].excluded, results[0].origin.empty)]
    notes += notes_of(known) if known else []
    if notes:
        print_lines(*notes)
    if args.json:
        _write(args.json, msgspec.json.format(msgspec.json.encode(document(runs, results, known))))
    if args.picture:
        title, summaries = heading(runs[0], results[0]), [result.summary for result in shown]
        names, lines = [each.policy for each in summaries], table(summaries)
        drawn = page(title, names, [result.curves for result in shown], lines, " ".join(notes))
        _write(args.picture, drawn.encode())
    return 0


def runs_of(args: argparse.Namespace, progress: Progress) -> tuple[list[ReplayRun], Calibrated | None]:
    """Runs, one for each row; for a recording also its calibration, which is learnt first."""
    library = library_of(args.policy_file)
    policies = args.policy or list(dict.fromkeys([*library.own_policies, *ROWS]))
    for name in policies:
        if name not in (known := sorted((*library.names("policy"), *BOUNDS))):
            raise ConfigError(f"--policy {name}: not one of {', '.join(known)}")
    names = [*policies, *(name for name in BOUNDS if name not in policies and not args.no_bounds)]
    first = ReplayRun(
        _trace(args),
        names[0],
        _limited(profile_of(args.profile or H100_8B.name), args),
        args.workers or 0,
        args.block_size,
        args.kv_blocks,
        args.event_delay_s,
        Slo(args.slo_ttft_s, args.slo_tpot_s),
        args.policy_file,
    )
    calibrated = calibrate(first, first.profile if args.profile else None, progress)
    if calibrated is not None:
        num_workers = first.num_workers or calibrated.num_workers
        first = replace(first, profile=calibrated.profile, num_workers=num_workers)
    first = replace(first, num_workers=first.num_workers or NUM_WORKERS)
    return [replace(first, policy=name) for name in names], calibrated


def _trace(args: argparse.Namespace) -> Trace:
    return Trace(
        args.trace,
        args.format,
        args.speed,
        args.seed,
        args.limit,
        args.tokenizer,
        args.rate,
        args.trace_unit,
        args.trace_block_size,
        args.strict,
    )


def _limited(profile: Profile, args: argparse.Namespace) -> Profile:
    limits = {"max_batched_tokens": args.max_batched_tokens, "max_num_seqs": args.max_num_seqs}
    return replace(profile, **{name: value for name, value in limits.items() if value})


def excluded(some: ExcludedRequests, empty: Sequence[str] = ()) -> list[str]:
    """Notes on requests that were not played as recorded; `empty` names the first with an empty prompt."""
    more = ", ..." if some.num_empty > len(empty) else ""
    context = f"the {some.context_tokens:,} tokens of a cache"
    notes = [
        ("excluded", some.num_empty, f"with an empty prompt ({', '.join(empty)}{more})"),
        ("rejected", some.num_rejected, f"with a prompt that leaves no room for an answer in {context}"),
        ("truncated", some.num_truncated, f"with an answer that reaches {context}"),
    ]
    return [f"{what}: {num:,} {why}" for what, num, why in notes if num]


def skipped(origin: TraceAccount) -> list[str]:
    """Note on rows that could not be read."""
    if not (num := origin.num_skipped):
        return []
    more = f"; and {num - len(origin.skipped):,} more" if num > len(origin.skipped) else ""
    return [f"skipped: {num:,} that cannot be read ({'; '.join(origin.skipped)}{more})"]


def notes_of(known: Calibrated) -> list[str]:
    """Notes beside every table of a recording: the calibration error."""
    one = known.profile
    speeds = (
        f"{one.name}: {one.prefill_tokens_per_s:,.0f} prompt tokens/s, a step {one.step_s * 1000:.2f} ms and "
        f"{one.seq_s * 1000:.3f} ms more for each further answer, {one.overhead_s * 1000:.1f} ms of overhead"
    )
    if not known.errors:
        return [speeds, f"not calibrated: unknown policy {known.policy} in the recording"]
    errors = "; ".join(error.text for error in known.errors)
    return [speeds, f"calibration, {known.policy} at 1x: {errors}"]


def heading(run: ReplayRun, result: RunResult) -> str:
    trace = run.trace
    return (
        f"{trace.path.name}: {result.summary.num_requests} requests at {trace.speed:g}x, "
        f"{run.num_workers} workers {run.profile.name}; "
        f"good: TTFT <= {run.slo.ttft_s:g} s, TPOT <= {run.slo.tpot_s * 1000:g} ms; "
        f"read as {result.origin.read_as}"
    )


def document(
    runs: Sequence[ReplayRun], results: Sequence[RunResult], known: Calibrated | None = None
) -> dict[str, object]:
    """Figures of all rows, and the setup in effect."""
    first, size = runs[0], results[0].block_size
    trace = asdict(first.trace) | {"path": str(first.trace.path)} | asdict(results[0].origin)
    setup = {
        "workers": first.num_workers,
        "profile": asdict(first.profile),
        "block_size": size,
        "kv_blocks": first.kv_blocks or first.profile.kv_tokens // size,
        "event_delay_s": first.event_delay_s,
        "slo": asdict(first.slo),
    }
    rows = [
        asdict(result.summary)
        | {"curves": {"hit_s": list(result.curves.hit_s), "hit_rate": list(result.curves.hits)}}
        for result in ([known.measured, *results] if known else results)
    ]
    figures: dict[str, object] = {
        "trace": trace,
        "setup": setup,
        "excluded": asdict(results[0].excluded),
        "rows": rows,
    }
    if known is not None:
        errors = [asdict(error) for error in known.errors]
        figures["calibration"] = {"policy": known.policy, "errors": errors}
    return figures


def _check_writable(path: Path) -> None:
    """Open a file for writing before hours of work. Raises ConfigError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # a pipe or a device
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    if is_new:
        path.unlink()


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc


def _count(text: str) -> int:
    if not 1 <= (value := int(text)) <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_COUNT:,}")
    return value


def _workers(text: str) -> int:
    if (value := _count(text)) > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_WORKERS:,}")
    return value


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0, and finite")
    return value
