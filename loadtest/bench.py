"""`make bench`: the cost of a decision and the size of the index, without a network.

Decisions are made by the Router that the server uses: parse is done, everything behind it is real: template,
tokenizer, hashes, index, policy, booking. Warm means that the conversation was seen. `prompt.*` is parse,
template and tokenizer of bodies that bench-proxy sends, each new in its last words.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gateway import request
from gateway.app import bundled_tokenizer
from gateway.core.blocks import root_hash, tokens_of
from gateway.core.fleet import Fleet
from gateway.core.kv_events import BlocksStored
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.models.prompt_source import ANY_MODEL, PromptSource
from gateway.observability.metrics import Metrics
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.requests.parsing import parse_request
from gateway.routing.router import Router
from gateway.tokenization.prompt_encoder import PromptEncoder
from loadtest.extent import extent
from loadtest.report import Figure, best_of, publish
from loadtest.workloads.bodies import Bodies, Texts, grow, new, small, warm
from loadtest.workloads.conversations import Conversations

NUM_WORKERS = 8
BLOCK_SIZE = 16
ROUNDS = extent(1, 2)
RUN_BLOCKS = 64
NUM_BLOCKS = extent(10_000, 1_000_000)
PROMPTS_PER_ROUND = extent(20, 1_000)
DECISIONS = extent(8, 200)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TEMPLATES = Path(__file__).parents[1] / "tests" / "data" / "templates"


def main() -> None:
    figures = [*decision_figures(), *prompt_figures(), rss_figure()]
    publish("bench", figures)


def decision_figures() -> list[Figure]:
    router, prompts = make_router()
    figures = []
    for label, num_tokens, goal in (("4k", 4_096, 1_000), ("64k", 65_536, 10_000)):
        warm = [conversation(prompts, num_tokens, seed) for seed in range(4)]
        for each in warm:
            learn(router, prompts, each)
        rounds = [decide_p50_us(router, warm) for _ in range(ROUNDS)]
        figures.append(best_of(f"decision.{label}_p50_us", "us", goal, rounds))
    return figures


def prompt_figures() -> list[Figure]:
    texts = Texts("m", seed=1)
    talks = {size: [texts.conversation(num, size * 1000)] for size, num in ((16, 11), (64, 15))}
    document = [texts.document(8_000)]
    num = PROMPTS_PER_ROUND * ROUNDS
    bodies = (
        ("small", "", CHAT, small(texts, num)),
        ("16k_warm", "", CHAT, warm(texts, talks[16], num)),
        ("16k_warm_qwen3", "qwen3", CHAT, warm(texts, talks[16], num)),
        ("64k_warm", "", CHAT, warm(texts, talks[64], num)),
        ("16k_grow", "", COMPLETION, grow(texts, document, num, 1)),
        ("16k_new", "", COMPLETION, new(texts, num, 16_000)),
    )
    return [
        best_of(f"prompt.{name}_us", "us", None, prompt_rounds_us(template, path, each))
        for name, template, path, each in bodies
    ]


def prompt_rounds_us(template: str, path: str, bodies: Bodies) -> list[float]:
    """CPU microseconds per request, parsed and tokenized, by rounds."""
    source = (TEMPLATES / f"{template}.jinja").read_text() if template else None
    prompts = PromptSource({ANY_MODEL: PromptEncoder.load(bundled_tokenizer(), source)}, Metrics())
    rounds = []
    for first in range(0, len(bodies), PROMPTS_PER_ROUND):
        given = [bodies[i] for i in range(first, first + PROMPTS_PER_ROUND)]
        started = time.process_time()
        for body in given:
            prompts.tokenize(parse_request(path, body, prompts.runs))
        rounds.append((time.process_time() - started) / len(given) * 1e6)
    return rounds


def make_router() -> tuple[Router, PromptSource]:
    fleet, index, assumed = Fleet(), MemoryIndex(), AssumedIndex()
    prompts = PromptSource({ANY_MODEL: PromptEncoder.load(bundled_tokenizer())}, Metrics())
    for i in range(NUM_WORKERS):
        worker = Worker(WorkerId(f"w{i}"), f"http://w{i}", (ServedModel("m", "m"),), block_size=BLOCK_SIZE)
        fleet.add(worker)
        index.add_worker(worker.id, root_hash("m"), BLOCK_SIZE)
        assumed.add_worker(worker.id, keep_s=1.0, max_blocks=100_000)
    router = Router(
        fleet=fleet, index=index, assumed=assumed, policy=PrefixOverlap(), tokenize=prompts.tokenize
    )
    return router, prompts


def conversation(prompts: PromptSource, num_tokens: int, seed: int) -> InferenceRequest:
    """Chat of about `num_tokens`: its text grows until it has as many."""
    source = Conversations("m", seed)
    messages = source.messages(num_tokens)
    while True:
        body = request("/v1/chat/completions", {"model": "m", "messages": messages})
        if prompts.tokenize(body).num_tokens >= num_tokens:
            return body
        messages = [*messages, {"role": "assistant", "content": source.piece()}]
        messages = [*messages, {"role": "user", "content": source.piece()}]


def learn(router: Router, prompts: PromptSource, chat: InferenceRequest) -> None:
    """Store the conversation at half of the workers, to different depths."""
    tokens = prompts.tokenize(chat).tokens[0]
    for i in range(NUM_WORKERS // 2):
        blocks = len(tokens) // BLOCK_SIZE * (i + 1) // (NUM_WORKERS // 2)
        run = BlocksStored(
            [(hash(chat.body) + n) & (2**63 - 1) for n in range(blocks)],
            None,
            tokens[: blocks * BLOCK_SIZE],
            BLOCK_SIZE,
        )
        router.index.apply(WorkerId(f"w{i}"), run)


def decide_p50_us(router: Router, chats: Sequence[InferenceRequest], num: int = DECISIONS) -> float:
    times = []
    for i in range(num):
        started = time.perf_counter()
        decision = router.decide(chats[i % len(chats)])
        times.append(time.perf_counter() - started)
        router.first_token(decision)
        router.finish(decision)
    return statistics.median(times) * 1e6


def rss_figure() -> Figure:
    """Memory figure, measured in a process of its own, so that nothing else grows meanwhile."""
    rounds = []
    for _ in range(ROUNDS):
        asked = subprocess.run(
            [sys.executable, "-c", "from loadtest.bench import fill_index; print(fill_index())"],
            capture_output=True,
            text=True,
            check=True,
        )
        rounds.append(float(asked.stdout))
    return best_of("index.rss_per_1m_blocks_mb", "MB", 200, rounds)


def fill_index() -> float:
    """Fill an index. Returns the growth of this process in MB by a million (block, worker) pairs, all
    different."""
    index = MemoryIndex()
    runs = NUM_BLOCKS // RUN_BLOCKS // NUM_WORKERS
    workers = [WorkerId(f"w{i}") for i in range(NUM_WORKERS)]
    for worker in workers:
        index.add_worker(worker, root_hash("m"), BLOCK_SIZE)
    before = rss_mb()
    name = 1 << 62
    for w, worker in enumerate(workers):
        for r in range(runs):
            first = (w * runs + r) * RUN_BLOCKS * BLOCK_SIZE
            tokens = tokens_of(range(first, first + RUN_BLOCKS * BLOCK_SIZE))
            names = list(range(name, name + RUN_BLOCKS))
            name += RUN_BLOCKS
            index.apply(worker, BlocksStored(names, None, tokens, BLOCK_SIZE))
    held = sum(index.num_blocks(worker) for worker in workers)
    return (rss_mb() - before) * 1_000_000 / held


def rss_mb() -> float:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


if __name__ == "__main__":
    main()
