"""Benchmark `make bench-real-workers WORKERS="URL URL"`: the same traffic to running engines, routed by each
policy in turn. The engines are real, and so are their times: on GPUs, or wherever they run.

A run starts with empty caches and a gateway of its own. Policies alternate, so that a machine that slows down
does so for all of them. The traffic is the demo's (agents with tools, questions about documents, chats), or
chats behind one system prompt (TRAFFIC=hot), in an open loop: requests come at their times whatever the
answers take. Environment:

    WORKERS   base URLs of engines that serve one model, can empty their caches (vLLM: VLLM_SERVER_DEV_MODE=1)
              and report cached tokens (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)
    TRAFFIC   demo, or hot
    POLICIES  names, the first is compared with the others      SPEED   traffic: 1 is about 4.5 requests/s
    SECONDS   of traffic in a run                               ROUNDS  runs of each policy
    FLAGS     more flags of the gateway, such as --tokenizer DIR
"""

import asyncio
import json
import os
import shlex
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile

from gateway.app import bundled_tokenizer
from gateway.demo.player import Player, Side
from gateway.demo.score import OBJECTIVE_S, Score
from gateway.demo.traffic import DemoRequest, traffic
from loadtest.contenders import metric_sum, samples
from loadtest.extent import IS_SMOKE, extent
from loadtest.fleet import SIM_READY, RunningFleet, first_match, gateway_before, running
from loadtest.report import Figure, median_of, publish
from loadtest.workloads.hot_chats import hot_chats

OURS, BASELINE = "expected_ttft", "round_robin"
START_TIMEOUT_S = 60.0
SMOKE_SIM = ("--kv-blocks", "2048", "--prefill-tokens-per-s", "200000")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of one run. `exact` is the share of predictions that were the number that the engine reported,
    None where the policy predicts nothing; `decide_ms` is the mean time of a routing decision."""

    score: Score
    exact: float | None
    decide_ms: float


def main() -> None:
    policies = os.environ.get("POLICIES", f"{OURS} {BASELINE}").split()
    speed = float(os.environ.get("SPEED", extent("4", "1")))
    seconds = float(os.environ.get("SECONDS", extent("1", "60", "300")))
    kind = os.environ.get("TRAFFIC", "demo")
    rounds = int(os.environ.get("ROUNDS", extent("1", "2", "5")))
    with workers() as urls:
        model = served_model(urls[0])
        runs: dict[str, list[Run]] = {policy: [] for policy in policies}
        for number in range(rounds):
            for policy in policies if number % 2 == 0 else reversed(policies):
                requests = requests_of(model, seconds, speed, 1 + number, kind)
                runs[policy].append(run(urls, policy, requests))
                print(line(policy, runs[policy][-1]), flush=True)
    publish("bench_real_workers", figures(runs))


@contextmanager
def workers() -> Iterator[Sequence[str]]:
    """URLs of the engines; a smoke run without any starts two simulated ones."""
    urls = [url.rstrip("/") for url in os.environ.get("WORKERS", "").split()]
    if not urls and not IS_SMOKE:
        raise SystemExit('name running engines: make bench-real-workers WORKERS="http://… http://…"')
    with ExitStack() as stack:
        for _ in range(0 if urls else 2):
            sim = stack.enter_context(running("sim", "--port", "0", *SMOKE_SIM))
            urls.append(first_match(sim, SIM_READY)[0])
        yield urls


TRAFFIC: Mapping[str, Callable[[int], Iterator[DemoRequest]]] = {"demo": traffic, "hot": hot_chats}


def requests_of(
    model: str, seconds: float, speed: float, seed: int, kind: str = "demo"
) -> Iterator[DemoRequest]:
    """Traffic of a run, for this model. Answers are text of their full length: random weights may end at
    once, and vLLM needs a parser for calls of tools."""
    for request in takewhile(lambda request: request.at_s < seconds * speed, TRAFFIC[kind](seed)):
        body = request.body | {"model": model, "ignore_eos": True, "tool_choice": "none"}
        yield replace(request, at_s=request.at_s / speed, body=body)


def run(urls: Sequence[str], policy: str, requests: Iterator[DemoRequest]) -> Run:
    for url in urls:
        empty_cache(url)
    with gateway_before(urls, ["--policy", policy, *gateway_flags()]) as fleet:
        until_ready(fleet)
        score = Score(policy)
        asyncio.run(Player((Side(fleet.gateway_url, score),), time.monotonic).play(requests))
        return run_of(score, get(f"{fleet.admin_url}/metrics"))


def gateway_flags() -> list[str]:
    flags = shlex.split(os.environ.get("FLAGS", ""))
    return flags or (["--tokenizer", str(bundled_tokenizer())] if IS_SMOKE else [])


def run_of(score: Score, metrics: str) -> Run:
    """Figures of a run from its answers and the gateway's metrics."""
    exact = [value for value in samples(metrics, "kvgate_prediction_exact_ratio") if value == value]
    compared = metric_sum(metrics, "kvgate_prediction_compared_tokens_total")
    stages = "kvgate_decision_stage_duration_seconds"
    decide_s = metric_sum(metrics, f"{stages}_sum")
    num = max(samples(metrics, f"{stages}_count"), default=0.0)
    is_known = bool(exact) and compared > 0
    return Run(score, statistics.mean(exact) if is_known else None, decide_s / num * 1000 if num else 0.0)


def line(policy: str, run: Run) -> str:
    score = run.score
    ttft = ", ".join(f"p{percent} {score.ttft(percent):.3f} s" for percent in (50, 90, 99))
    text = f"{policy}: {score.num_answered} answered, {score.num_failed} failed; TTFT {ttft}; "
    text += f"cached {score.hit_rate:.1%}, computed {score.computed_tokens:,} prompt tokens; "
    text += f"{score.good:.1%} within {OBJECTIVE_S:g} s; decision {run.decide_ms:.2f} ms"
    return text if run.exact is None else f"{text}; predictions exact {run.exact:.1%}"


def figures(runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    """Medians of the rounds of each policy, and the first policy beside each other one, round by round."""
    found: list[Figure] = []
    for policy, some in runs.items():
        found += policy_figures(policy, some)
    (first, ours), *others = runs.items()
    for name, theirs in others:
        pairs = [(one.score, other.score) for one, other in zip(ours, theirs, strict=True)]
        for percent in (50, 90, 99):
            ratios = [one.ttft(percent) / (other.ttft(percent) or 1.0) for one, other in pairs]
            found.append(median_of(f"{first}.ttft_p{percent}_over.{name}", "x", None, ratios))
        computed = [one.computed_tokens / (other.computed_tokens or 1) for one, other in pairs]
        found.append(median_of(f"{first}.computed_over.{name}", "x", None, computed))
    return found


def policy_figures(policy: str, runs: Sequence[Run]) -> list[Figure]:
    def of(name: str, unit: str, values: Sequence[float]) -> Figure:
        return median_of(f"{policy}.{name}", unit, None, values)

    scores = [run.score for run in runs]
    found = [of(f"ttft_p{p}", "s", [score.ttft(p) for score in scores]) for p in (50, 90, 99)]
    found += [
        of("hit_rate", "share", [score.hit_rate for score in scores]),
        of("computed", "tokens", [float(score.computed_tokens) for score in scores]),
        of("within_objective", "share", [score.good for score in scores]),
        of("failed", "requests", [float(score.num_failed) for score in scores]),
        of("decision", "ms", [run.decide_ms for run in runs]),
    ]
    exact = [run.exact for run in runs if run.exact is not None]
    return [*found, of("exact", "share", exact)] if exact else found


# HTTP ------------------------------------------------------------------------------------------


def served_model(url: str) -> str:
    name: str = json.loads(get(f"{url}/v1/models"))["data"][0]["id"]
    return name


def empty_cache(url: str) -> None:
    """Empty an engine's prefix cache by vLLM's path or SGLang's. Raises SystemExit where it has neither."""
    for path in ("/reset_prefix_cache", "/flush_cache"):
        try:
            _direct.open(urllib.request.Request(url + path, method="POST"), timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
        else:
            return
    raise SystemExit(f"{url} cannot empty its cache: start vLLM with VLLM_SERVER_DEV_MODE=1")


def until_ready(fleet: RunningFleet) -> None:
    """Wait until each worker is up and its events are followed from their start."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready(get(f"{fleet.admin_url}/admin/workers"), len(fleet.worker_urls)):
        if time.monotonic() > deadline:
            raise SystemExit(f"workers not ready: {get(f'{fleet.admin_url}/admin/workers')}")
        time.sleep(0.1)


def is_ready(view: str, num_endpoints: int) -> bool:
    endpoints = json.loads(view)["endpoints"]
    workers = [worker for endpoint in endpoints for worker in endpoint["workers"]]
    is_exact = all(worker["is_up"] and worker["stream"] in ("exact", None) for worker in workers)
    return len([each for each in endpoints if each["workers"]]) == num_endpoints and is_exact


def get(url: str) -> str:
    with _direct.open(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


if __name__ == "__main__":
    main()
