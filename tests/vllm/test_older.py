"""An older vLLM, 0.29, which reports no event ports: kvgate gets them as options, and predicts it exactly."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.blockless import PlainAnswer, chat, complete, text
from tests.support.engine_figures import EngineFigures
from tests.support.engine_process import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.engines

NUM_CONVERSATIONS, NUM_TURNS = 5, 4


@pytest.fixture(scope="module")
def worker(start_module_vllm: Callable[..., VllmWorker]) -> VllmWorker:
    return start_module_vllm(is_older=True).wait_ready()


@pytest.fixture(scope="module")
def flags(worker: VllmWorker, vllm_model: Path) -> tuple[str, ...]:
    ports = ("--events-port", str(worker.events_port), "--events-replay-port", str(worker.replay_port))
    return ("--worker", worker.url, "--tokenizer", str(vllm_model), *ports)


@pytest.fixture(scope="module")
def gateway(flags: tuple[str, ...]) -> Iterator[GatewayProcess]:
    with GatewayProcess(*flags, "--expose-headers") as process:
        wait_until(lambda: process.streams() == ["exact"], 30)
        yield process


def test_it_is_the_older_version_and_checked_as_exact(
    gateway: GatewayProcess, flags: tuple[str, ...]
) -> None:
    (endpoint,) = gateway.admin("/admin/workers")["endpoints"]
    assert (endpoint["engine"], endpoint["version"][:4]) == ("vllm", "0.29")
    found = gateway.check(*flags, "--probe-timeout-s", "30")
    assert ": exact and verified" in found and "WRONG" not in found, found


def is_settled(gateway: GatewayProcess) -> bool:
    """True once predictions come from events alone; a lookup expires assumed blocks that are due."""
    complete(gateway, "m", [1], max_tokens=1)
    return all(worker["assumed_blocks"] == 0 for worker in gateway.admin("/admin/index")["workers"])


def test_chats_and_texts_are_predicted_as_it_reports_them(
    gateway: GatewayProcess, figures: EngineFigures
) -> None:
    rng, answers = random.Random("older"), list[PlainAnswer]()
    for number in range(NUM_CONVERSATIONS):
        said = [{"role": "user", "content": text(f"older {number}", 60)}]
        prompt = text(f"older text {number}", 60)
        for _ in range(NUM_TURNS):
            wait_until(lambda: is_settled(gateway), 30)
            answers.append(chat(gateway, "m", said, max_tokens=40, ignore_eos=True))
            answers.append(complete(gateway, "m", prompt, max_tokens=40, ignore_eos=True))
            said.append({"role": "assistant", "content": answers[-2].text})
            said.append({"role": "user", "content": text(rng.random(), 30)})
            prompt += answers[-1].text + " " + text(rng.random(), 30)
    pairs = [(answer.predicted, answer.cached) for answer in answers]
    figures.add_equal("vLLM 0.29", pairs)
    assert [predicted for predicted, _ in pairs] == [cached for _, cached in pairs]
    growing = [each.cached for each in answers[::2]][:NUM_TURNS]
    assert all(earlier < later for earlier, later in pairwise(growing))
