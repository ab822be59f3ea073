"""Benchmark `make bench-proxy`: the cost of a request and of a streamed chunk in the gateway, beside nginx.

The whole path is measured: HTTP both ways, template, tokenizer, hashes, index, policy, booking, and the
ingest of KV events that go on meanwhile. Workers and load are C (`c/`), so that on a small machine the
gateway gets a core to itself. Machines are shared: CPU time per request is the figure to trust, as the better
of two rounds, beside nginx on the same workers in the same run.
"""

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.core.blocks import Tokens
from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest import bench_memory
from loadtest.contenders import Contender, GatewayContender, fake_workers, gateway, missing_nginx, nginx
from loadtest.extent import extent
from loadtest.instruments import BenchError, InstrumentError, LoadgenLoad, LoadgenReading, build, measure
from loadtest.publisher import write_prompts
from loadtest.report import Figure, best_of, publish
from loadtest.workloads.bodies import STREAMED, Bodies, Texts, grow, new, small, warm

NUM_WORKERS = extent(2, 4)
ROUNDS = extent(1, 2)
SECONDS = extent(0.2, 3.0)
NGINX_SECONDS = extent(0.2, 2.0)
SHRINK = extent(20, 1)
"""Factor by which there are fewer bodies."""
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
GROW_CONNECTIONS = 16
QWEN3 = Path(__file__).parents[1] / "tests" / "data" / "templates" / "qwen3.jinja"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario: `bodies` names a file of Materials; `column` where its ratio to nginx is shown, "" for
    nowhere.

    `min_hit_share` proves that the index was used: with less of it, the run is rejected.
    """

    name: str
    bodies: str
    load: LoadgenLoad
    goal: float | None = None
    column: str = ""
    min_hit_share: float = 0.0
    template: str = "bundled"
    gap_ms: int = 5

    def cost_us(self, reading: LoadgenReading) -> float:
        return reading.cpu_us_per_chunk if self.load.is_stream else reading.cpu_us_per_request


def _load(connections: int, path: str = CHAT, think_ms: int = 0, is_stream: bool = False) -> LoadgenLoad:
    return LoadgenLoad(path, connections, SECONDS, think_ms=think_ms, is_stream=is_stream, is_once=True)


SCENARIOS = (
    Scenario("small", "small", _load(32), 60, "small"),
    Scenario("paced", "small", _load(8, think_ms=20)),
    Scenario("16k_warm", "16k_warm", _load(16), 90, "16k", 0.8),
    Scenario("16k_warm_qwen3", "16k_warm", _load(16), 150, "", 0.8, "qwen3"),
    Scenario("16k_grow", "16k_grow", _load(GROW_CONNECTIONS, COMPLETION), 150, "", 0.8),
    Scenario("16k_new", "16k_new", _load(16, COMPLETION), 500),
    Scenario("64k_warm", "64k_warm", _load(16), 150, "64k", 0.8),
    Scenario("chunk", "stream", _load(64, is_stream=True), 12, "chunk"),
    Scenario("chunk_8", "stream", _load(8, is_stream=True), gap_ms=10),
)
LATENCY = Scenario("added", "16k_warm", _load(8, think_ms=20), min_hit_share=0.8)
"""Latency that the gateway adds to a warm 4k-token prompt, at 8 connections that pause: no queue of its
own."""
TWO = Scenario("two_processes", "small", _load(32))
"""Scenario of one process and two in turn: the cost of sharing per request, and its evenness."""
SMOKED = "16k_warm_qwen3,chunk,added,two_processes,streams_10k,slow_reader,worst_stall"
"""Scenarios of a smoke run: each kind of load and figure once; tests/loadtest makes each kind of body."""


class Materials:
    """Files that a run needs, in a temporary directory: bodies, the workers' prompts, tokenizers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._texts = Texts("m", seed=1)
        self._conversations = {
            "16k": [self._texts.conversation(11, 16_000) for _ in range(16)],
            "64k": [self._texts.conversation(15, 64_000) for _ in range(8)],
        }
        self._documents = [self._texts.document(8_000) for _ in range(GROW_CONNECTIONS)]
        self.tokenizers = {"bundled": bundled_tokenizer(), "qwen3": self._qwen3()}

    def prompts(self) -> Path:
        """Prompts that the workers hold: every known conversation under both templates, and the documents."""
        path = self._directory / "prompts"
        write_prompts(path, self._known())
        return path

    def bodies(self, name: str) -> Path:
        """Bodies for one run, enough for twice the goal's speed: a faster run is shorter."""
        path = self._directory / f"{name}.bodies"
        if not path.exists():
            self._make(name).write(path)
        return path

    def long_bodies(self) -> Path:
        """New prompts of 256 KB."""
        path = self._directory / "long.bodies"
        if not path.exists():
            new(self._texts, 400, bench_memory.LONG_BYTES).write(path)
        return path

    def nginx_directory(self) -> Path:
        path = self._directory / "nginx"
        path.mkdir(exist_ok=True)
        return path

    def _make(self, name: str) -> Bodies:
        match name:
            case "small":
                return small(self._texts, 120_000 // SHRINK)
            case "stream":
                return small(self._texts, 5_000 // SHRINK, STREAMED)
            case "16k_warm":
                return warm(self._texts, self._conversations["16k"], 80_000 // SHRINK)
            case "64k_warm":
                return warm(self._texts, self._conversations["64k"], 50_000 // SHRINK)
            case "16k_grow":
                return grow(self._texts, self._documents, 50_000 // SHRINK, GROW_CONNECTIONS)
            case "16k_new":
                return new(self._texts, 12_000 // SHRINK, 16_000)
        raise ValueError(f"no bodies are called {name}")

    def _known(self) -> list[Tokens]:
        known: list[Tokens] = []
        for template, directory in self.tokenizers.items():
            prompts = PromptEncoder.load(directory)
            for size, conversations in self._conversations.items():
                tokens = [_prompt(prompts, conversation) for conversation in conversations]
                print(f"known under {template}: {len(tokens)} of {size}, {len(tokens[0])} tokens each")
                known += tokens
        return known + [prompts.completion({"prompt": document})[0] for document in self._documents]

    def _qwen3(self) -> Path:
        path = self._directory / "qwen3"
        shutil.copytree(bundled_tokenizer(), path)
        shutil.copy(QWEN3, path / "chat_template.jinja")
        return path


def _prompt(prompts: PromptEncoder, messages: Sequence[Mapping[str, str]]) -> Tokens:
    return prompts.chat({"messages": messages, "add_generation_prompt": False}, datetime.now())


@dataclass(slots=True)
class Results:
    """Rounds by figure: costs of the gateway and of nginx by scenario, and the rest by its name."""

    kvgate: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    nginx: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    added_p50_ms: list[float] = field(default_factory=list)
    added_p99_ms: list[float] = field(default_factory=list)
    memory: list[Figure] = field(default_factory=list)
    of_processes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    imbalance: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        for name in ("worker", "loadgen"):
            build(name)
        with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as directory:
            materials = Materials(Path(directory))
            results = run(materials, set(args.only.split(",")) if args.only else None)
            names = args.only.split(",") if args.only else bench_memory.NAMES
            results.memory += bench_memory.figures(names, ROUNDS, materials)
    except (InstrumentError, BenchError) as exc:
        print(f"bench-proxy: {exc}", file=sys.stderr)
        return 1
    print_ratios(results)
    found = list(figures(results))
    if args.only:  # a part must not take the place of the whole on file
        for figure in found:
            print(f"{figure.name}: {figure.value:,.3f} {figure.unit} {figure.verdict}")
    else:
        publish("bench-proxy", found)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [*(scenario.name for scenario in (*SCENARIOS, LATENCY, TWO)), *bench_memory.NAMES]
    parser = argparse.ArgumentParser(prog="bench_proxy", description="The gateway's cost beside nginx's.")
    parser.add_argument(
        "--only",
        metavar="NAMES",
        default=extent(SMOKED, None),
        help=f"some of {','.join(names)}; nothing is written",
    )
    args = parser.parse_args(argv)
    if unknown := set((args.only or names[0]).split(",")) - set(names):
        parser.error(f"no scenario is called {', '.join(sorted(unknown))}")
    return args


# running ---------------------------------------------------------------------------------------


def run(materials: Materials, only: set[str] | None) -> Results:
    """Run the scenarios, each with workers of its own: their published events are replayed to each
    gateway."""
    results = Results()
    if why := missing_nginx():
        print(f"without nginx's figures: {why}")
    prompts = materials.prompts()
    for scenario in (LATENCY, *SCENARIOS, TWO):
        if only is None or scenario.name in only:
            materials.bodies(scenario.bodies)  # made before anything runs
            with fake_workers(NUM_WORKERS, scenario.gap_ms, prompts) as ports:
                for _ in range(ROUNDS):
                    run_round(scenario, materials, ports, results)
    return results


def run_round(scenario: Scenario, materials: Materials, ports: Sequence[int], results: Results) -> None:
    if scenario is LATENCY:
        direct = run_load(scenario, materials, Contender("direct", ports[0], 0))
        through = run_gateway(scenario, materials, ports, results)
        results.added_p50_ms.append((through.latency_p50_us - direct.latency_p50_us) / 1000)
        results.added_p99_ms.append((through.latency_p99_us - direct.latency_p99_us) / 1000)
        return
    if scenario is TWO:
        for processes in (1, 2, 1, 2):  # more of them: it is a difference that is looked for
            reading = run_gateway(scenario, materials, ports, results, processes)
            results.of_processes[processes].append(scenario.cost_us(reading))
        return
    if scenario.column and not missing_nginx():
        with nginx(ports, materials.nginx_directory()) as contender:
            reading = run_load(scenario, materials, contender, NGINX_SECONDS)
            results.nginx[scenario.name].append(scenario.cost_us(reading))
    reading = run_gateway(scenario, materials, ports, results)
    results.kvgate[scenario.name].append(scenario.cost_us(reading))


def run_gateway(
    scenario: Scenario, materials: Materials, ports: Sequence[int], results: Results, processes: int = 1
) -> LoadgenReading:
    """Measure a gateway of its own for each round: none profits from another's requests."""
    with gateway(ports, materials.tokenizers[scenario.template], "--processes", str(processes)) as contender:
        reading = run_load(scenario, materials, contender)
        check_hits(scenario, contender, reading)
        if processes > 1:
            results.imbalance.append(contender.imbalance())
    return reading


def run_load(
    scenario: Scenario, materials: Materials, contender: Contender, seconds: float = SECONDS
) -> LoadgenReading:
    """Put a load on a contender. Raises BenchError for statuses other than 200."""
    load = scenario.load
    timed = replace(load, seconds=seconds)
    reading = measure(contender.port, materials.bodies(scenario.bodies), timed, contender.pids)
    if reading.num_errors or not (reading.num_chunks if load.is_stream else reading.num_requests):
        raise BenchError(
            f"{scenario.name}, {contender.name}: {reading.num_requests} answered, {reading.num_errors} failed"
        )
    unit = f"{reading.num_chunks} chunks" if load.is_stream else f"{reading.requests_per_s:,.0f} requests/s"
    times = f"p50 {reading.latency_p50_us} us, p99 {reading.latency_p99_us} us"
    if load.is_stream:
        times = f"one way p50 {reading.one_way_p50_us} us, p99 {reading.one_way_p99_us} us"
    print(f"{scenario.name:15} {contender.name:7} {scenario.cost_us(reading):8.1f} us  {unit}, {times}")
    return reading


def check_hits(scenario: Scenario, contender: GatewayContender, reading: LoadgenReading) -> None:
    """Raise BenchError where the index did not know what it should."""
    share = contender.hit_share()
    print(f"{'':23} hit share {share:.0%}, {reading.rss_mb:.0f} MB")
    if share < scenario.min_hit_share:
        raise BenchError(f"{scenario.name}: {share:.0%} of the prompt tokens were predicted as cached")


# figures ---------------------------------------------------------------------------------------


def figures(results: Results) -> Iterator[Figure]:
    """Measured figures, in the order of SCENARIOS; further figures go to the end."""
    for scenario in SCENARIOS:
        if rounds := results.kvgate.get(scenario.name):
            yield best_of(f"proxy.{scenario.name}.cpu_us", "us", scenario.goal, rounds)
    for scenario in SCENARIOS:
        if rounds := results.nginx.get(scenario.name):
            yield best_of(f"proxy.nginx.{scenario.name}.cpu_us", "us", None, rounds)
    if results.added_p50_ms:
        yield best_of("proxy.added_p50_ms", "ms", 0.3, results.added_p50_ms)
        yield best_of("proxy.added_p99_ms", "ms", 2, results.added_p99_ms)
    if ones := results.of_processes.get(1):
        ratios = [two / min(ones) for two in results.of_processes[2]]
        yield best_of("proxy.two_process_cpu_ratio", "", 1.1, ratios)
        yield best_of("proxy.two_process_imbalance", "", 0.2, results.imbalance)
    yield from results.memory


def print_ratios(results: Results) -> None:
    """Print CPU-us per request, and per chunk of a stream: nginx, the gateway, and their ratio."""
    columns = {scenario.column: scenario.name for scenario in SCENARIOS if scenario.column}
    rows = {
        name: {column: min(of[scenario]) for column, scenario in columns.items() if of.get(scenario)}
        for name, of in (("nginx", results.nginx), ("kvgate", results.kvgate))
    }
    ours, theirs = rows["kvgate"], rows["nginx"]
    rows["ratio"] = {column: ours[column] / theirs[column] for column in ours.keys() & theirs.keys()}
    print("\nCPU-us  " + "".join(f"{column:>10}" for column in columns))
    for name, row in rows.items():
        cells = (f"{row[column]:10.1f}" if column in row else f"{'-':>10}" for column in columns)
        print(f"{name:8}" + "".join(cells))


if __name__ == "__main__":
    sys.exit(main())
