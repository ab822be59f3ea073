"""Benchmark `make bench-pd`: gateway CPU of a disaggregated request beside one with a single worker:
`pd.cpu_split_over_direct`.

A real gateway in front of C workers (`c/worker.c`), over real sockets: `direct` are four that do both,
`split` two that compute prompts for two that answer, by vLLM's NixlConnector. Both get the same bodies;
responses are streams of a few tokens with their usage, since each more costs both kinds the same. Machines
are shared: the two are measured one after the other, and the better of two rounds counts, of each.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest.contenders import GatewayContender, fake_workers, gateway, metric_sum
from loadtest.extent import extent
from loadtest.instruments import BenchError, InstrumentError, LoadgenLoad, LoadgenReading, measure
from loadtest.publisher import write_prompts
from loadtest.report import Figure, best_of, publish
from loadtest.workloads.bodies import STREAMED_WITH_USAGE, Bodies, Message, Texts, new, small, warm

NUM_PAIRS = extent(1, 2)
ROUNDS = extent(1, 2)
SECONDS = extent(0.3, 3.0)
FIRST_S = 0.3
MAX_SHOWN = 10
CONNECTIONS = extent(8, 32)
NUM_CONVERSATIONS = 16
NUM_BODIES = extent(4_000, 20_000)
WORKER = ("-n", "4", "-u", "1")
GAP_MS = 2
GOAL = 2.2
"""Goal: two requests where there was one, and something for joining them."""
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SPLIT_FLAGS = ("--disaggregation", "always", "--connector", "nixl")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of requests; `in_headline`: the worst of these is the figure."""

    name: str
    path: str
    in_headline: bool = True
    min_hit_share: float = 0.0


ALL_SIZES = (
    Size("small", CHAT),
    Size("16k", CHAT, min_hit_share=0.8),
    Size("16k_new", COMPLETION, in_headline=False),
)
SIZES = extent(ALL_SIZES[1:2], ALL_SIZES)
"""Sizes: a short question, a known conversation of 16 KB with a new message, and a text never seen."""


@dataclass(slots=True)
class RequestCosts:
    """CPU-us per request, round by round, of one size."""

    direct: list[float] = field(default_factory=list)
    split: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [split / min(self.direct) for split in self.split]


class BenchWorkers:
    """Ports of the workers of both fleets, which hold the same prompts. Prefill and decode workers hold them
    all twice: computed blocks were handed on."""

    def __init__(self, stack: ExitStack, prompts: Path) -> None:
        self.both, self.prefill, self.decode = (
            stack.enter_context(fake_workers(num, GAP_MS, prompts, more=WORKER))
            for num in (2 * NUM_PAIRS, NUM_PAIRS, NUM_PAIRS)
        )


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as directory, ExitStack() as stack:
            costs = run(Path(directory), stack)
    except (InstrumentError, BenchError) as exc:
        print(f"bench-pd: {exc}", file=sys.stderr)
        return 1
    publish("bench_pd_cost", list(figures(costs)))
    return 0


def run(directory: Path, stack: ExitStack) -> dict[str, RequestCosts]:
    """Costs by the name of the size. Raises BenchError and InstrumentError."""
    texts = Texts("m", seed=1)
    known = [texts.conversation(11, 16_000) for _ in range(NUM_CONVERSATIONS)]
    _write_known(directory / "prompts", known)
    workers = BenchWorkers(stack, directory / "prompts")
    costs: dict[str, RequestCosts] = {}
    for size in SIZES:
        bodies, of_size = directory / f"{size.name}.bodies", costs.setdefault(size.name, RequestCosts())
        _bodies(size.name, texts, known).write(bodies)
        for _ in range(ROUNDS):
            with gateway(workers.both, bundled_tokenizer()) as direct:
                of_size.direct.append(cost_us(size, "direct", direct, bodies))
            with gateway(
                workers.decode, bundled_tokenizer(), *SPLIT_FLAGS, prefill_ports=workers.prefill
            ) as split:
                show_lengths(split, directory / "first.bodies")
                before = split.metrics()
                of_size.split.append(cost_us(size, "split", split, bodies))
                check_split(size, before, split.metrics())
    return costs


def show_lengths(contender: GatewayContender, bodies: Path) -> None:
    """Send requests until both legs agree. These workers report 12 tokens for each prompt and the gateway
    counts others: it trusts a decode worker once that has answered alone, so each must have answered.

    Raises BenchError where legs still differ after MAX_SHOWN loads.
    """
    small(Texts("m", seed=2), 2_000, STREAMED_WITH_USAGE).write(bodies)
    for _ in range(MAX_SHOWN):
        _, failed_before, differ_before, _ = _counts(contender.metrics())
        measure(
            contender.port, bodies, LoadgenLoad(CHAT, CONNECTIONS, FIRST_S, is_stream=True), contender.pids
        )
        split, failed, differ, _ = _counts(contender.metrics())
        if split and (failed, differ) == (failed_before, differ_before):
            return
    raise BenchError(f"legs of a request still differ in their number of tokens after {MAX_SHOWN} loads")


def _write_known(path: Path, conversations: Sequence[Sequence[Message]]) -> None:
    prompts = PromptEncoder.load(bundled_tokenizer())
    asked = [{"messages": messages, "add_generation_prompt": False} for messages in conversations]
    write_prompts(path, [prompts.chat(each, datetime.now()) for each in asked])


def _bodies(name: str, texts: Texts, known: Sequence[Sequence[Message]]) -> Bodies:
    """Bodies for one run; none is sent twice."""
    match name:
        case "small":
            return small(texts, NUM_BODIES, STREAMED_WITH_USAGE)
        case "16k":
            return warm(texts, known, NUM_BODIES, STREAMED_WITH_USAGE)
    return new(texts, NUM_BODIES // 2, 16_000, STREAMED_WITH_USAGE)


def cost_us(size: Size, name: str, contender: GatewayContender, bodies: Path) -> float:
    """CPU microseconds per request. Raises BenchError for statuses other than 200, and where the index did
    not know what it should."""
    load = LoadgenLoad(size.path, CONNECTIONS, SECONDS, is_stream=True, is_once=True)
    reading = measure(contender.port, bodies, load, contender.pids)
    if reading.num_errors or not reading.num_requests:
        raise BenchError(f"{size.name}, {name}: {reading.num_requests} answered, {reading.num_errors} failed")
    if (share := contender.hit_share()) < size.min_hit_share:
        raise BenchError(f"{size.name}: {share:.0%} of the prompt tokens were predicted as cached")
    _print(size, name, reading, share)
    return reading.cpu_us_per_request


def check_split(size: Size, before: str, metrics: str) -> None:
    """Raise BenchError where not all were split since `before`, or a leg failed."""
    split, failed, differ, direct = (
        after - once for once, after in zip(_counts(before), _counts(metrics), strict=True)
    )
    if not split or failed or differ or direct:
        raise BenchError(
            f"{size.name}: {split:.0f} requests were split, {direct:.0f} were not; {failed:.0f} legs failed, "
            f"{differ:.0f} saw another prompt"
        )


def _counts(metrics: str) -> tuple[float, float, float, float]:
    names = (
        "kvgate_kv_transfer_duration_seconds_count",
        "kvgate_disaggregation_failures_total",
        "kvgate_disaggregation_prompt_mismatches_total",
    )
    direct = [
        line
        for line in metrics.splitlines()
        if line.startswith('kvgate_disaggregation_plans_total{plan="direct"')
    ]
    split, failed, differ = (metric_sum(metrics, name) for name in names)
    return split, failed, differ, sum(float(line.rpartition(" ")[2]) for line in direct)


def _print(size: Size, name: str, reading: LoadgenReading, share: float) -> None:
    times = f"first byte p50 {reading.first_byte_p50_us} us, p99 {reading.first_byte_p99_us} us"
    print(
        f"{size.name:8} {name:7} {reading.cpu_us_per_request:8.1f} us  "
        f"{reading.requests_per_s:,.0f} requests/s, {times}, hit share {share:.0%}"
    )


def figures(costs: Mapping[str, RequestCosts]) -> Iterator[Figure]:
    """Figures: the worse of the small and the known long prompt first, then each size."""
    name = "pd.cpu_split_over_direct"
    worst = max((costs[size.name].ratios for size in SIZES if size.in_headline), key=min)
    yield best_of(name, "x", GOAL, worst)
    for size in SIZES:
        yield best_of(f"{name}.{size.name}", "x", GOAL, costs[size.name].ratios)
    for size in SIZES:
        yield best_of(f"pd.direct.{size.name}.cpu_us", "us", None, costs[size.name].direct)
        yield best_of(f"pd.split.{size.name}.cpu_us", "us", None, costs[size.name].split)


if __name__ == "__main__":
    sys.exit(main())
