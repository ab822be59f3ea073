"""A real vLLM with a CPU tier behind its GPU cache: hits of both are predicted, by both kinds of its events.

Self-describing stores have tokens and parents; placeholders name blocks that earlier events of the GPU
described. The GPU's cache has 40 blocks here, and the tier 200.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_figures import EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import TalkAnswer, complete, ids
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.engines

PLUGINS = Path(__file__).parent / "plugins"
BLOCK = 32
NUM_GPU_BLOCKS, NUM_CPU_BLOCKS = 40, 200
BLOCK_BYTES = 8 * 2 * 4 * 64 * 2 * BLOCK  # layers, K and V, heads, their size, bytes, tokens
NUM_REQUESTS, NUM_ROOTS = 100, 10


@pytest.fixture(scope="module", params=[True, False], ids=["self-describing", "placeholders"])
def worker(
    request: pytest.FixtureRequest, start_module_vllm: Callable[..., VllmWorker]
) -> Iterator[VllmWorker]:
    tier: dict[str, Any] = {"spec_name": "PlainCpuSpec", "spec_module_path": "plain_offload"}
    tier |= {"cpu_bytes_to_use": NUM_CPU_BLOCKS * BLOCK_BYTES, "self_describing_kv_events": request.param}
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": tier,
    }
    started = start_module_vllm(
        num_gpu_blocks_override=NUM_GPU_BLOCKS,
        max_model_len=1024,
        extra_args=("--kv-transfer-config", json.dumps(transfer)),
        extra_env=[("PYTHONPATH", str(PLUGINS))],
    ).wait_ready()
    yield started
    started.stop()  # the next one needs its cores


@pytest.fixture(scope="module")
def gateway(worker: VllmWorker) -> Iterator[GatewayProcess]:
    with GatewayProcess(
        "--worker", worker.url, "--tokenizer", str(worker.model), "--expose-headers"
    ) as process:
        wait_until(lambda: process.streams() == ["exact"], 60)
        yield process


def offloaded(gateway: GatewayProcess, answer: TalkAnswer) -> int:
    """Tokens of the predicted hit that were only in the tier."""
    (candidate,) = gateway.admin(f"/admin/decisions/{answer.decision}")["candidates"]
    return sum(candidate["offloaded_tokens"].values())


def test_hits_of_both_caches_are_predicted(gateway: GatewayProcess, figures: EngineFigures) -> None:
    rng = random.Random("tiers")
    roots = [ids(f"tier {i}", 480) for i in range(NUM_ROOTS)]
    answers = []
    for _ in range(NUM_REQUESTS):
        prompt = rng.choice(roots)[: rng.randrange(64, 480)] + [rng.randrange(100, 8000) for _ in range(20)]
        answers.append(complete(gateway, prompt))
    figures.add_equal("vLLM 0.32 with its CPU tier", [(a.predicted, a.cached) for a in answers])
    wrong = [(a.predicted, a.cached) for a in answers if a.predicted != a.cached]
    assert len(wrong) <= NUM_REQUESTS // 100, wrong
    assert sum(a.cached > 0 for a in answers) > NUM_REQUESTS // 2
    from_tier = [a for a in answers if offloaded(gateway, a)]
    assert len(from_tier) > 10 and all(a.cached > 0 for a in from_tier)


def test_a_prompt_that_only_the_tier_has_is_a_hit(gateway: GatewayProcess) -> None:
    prompt = ids("only the tier", 300)
    cold = complete(gateway, prompt)
    for i in range(4):  # more than the GPU's cache has
        complete(gateway, ids(f"flood {i}", 400))
    warm = complete(gateway, prompt)
    assert (cold.predicted, cold.cached) == (0, 0)
    assert warm.predicted == warm.cached == 299 // BLOCK * BLOCK
    assert offloaded(gateway, warm) == warm.predicted and warm.text == cold.text
