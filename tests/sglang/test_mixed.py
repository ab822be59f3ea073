"""A fleet of one model on two engines, a real SGLang and a real vLLM: each is predicted by its own rules."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_talk import TalkAnswer, ask, chat, complete, ids, is_exact, text
from tests.support.gateway_process import GatewayProcess
from tests.vllm.engine import VllmOptions, VllmWorker

NUM_CONVERSATIONS = 12
PAGE = 16


@pytest.fixture(scope="module")
def workers(
    start_module_sglang: Start, sglang_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SglangWorker, VllmWorker]]:
    with ExitStack() as stack:
        sglang = start_module_sglang(page_size=PAGE)
        vllm = VllmWorker(sglang_model, tmp_path_factory.mktemp("vllm") / "engine.log", VllmOptions())
        stack.callback(vllm.stop)
        vllm.start()
        yield sglang.wait_ready(), vllm.wait_ready()


@pytest.fixture(scope="module")
def gateway(workers: tuple[SglangWorker, VllmWorker]) -> Iterator[GatewayProcess]:
    given = [flag for worker in workers for flag in ("--worker", worker.url)]
    model = str(workers[0].model)
    with GatewayProcess(*given, "--tokenizer", model, "--expose-headers") as process:
        is_exact(process, 2)
        yield process


def ends_of(workers: tuple[SglangWorker, VllmWorker]) -> set[str]:
    return {f"127.0.0.1:{worker.port}" for worker in workers}


def test_chats_return_to_the_engine_that_knows_them(
    gateway: GatewayProcess, workers: tuple[SglangWorker, VllmWorker]
) -> None:
    used: Counter[str] = Counter()
    for number in range(NUM_CONVERSATIONS):
        turns = [text(f"mixed {number}", 80)]
        first = chat(gateway, *turns)
        second = chat(gateway, *turns, first.text, text(f"more {number}", 20))
        for answer in (first, second):
            assert answer.predicted == answer.cached, (number, answer)
        assert second.worker == first.worker
        assert second.cached > first.body["usage"]["prompt_tokens"] // 2
        used[first.worker] += 1
    assert used.keys() == ends_of(workers), used


def test_token_ids_return_to_the_engine_that_knows_them(
    gateway: GatewayProcess, workers: tuple[SglangWorker, VllmWorker]
) -> None:
    """Whole blocks of the worker's own size count."""
    sizes = dict(zip((f"127.0.0.1:{worker.port}" for worker in workers), (PAGE, 32), strict=True))
    firsts: list[TalkAnswer] = []
    for number in range(NUM_CONVERSATIONS):
        prompt = ids(f"mixed {number}", 120)
        first, again = (complete(gateway, prompt) for _ in range(2))
        assert again.worker == first.worker
        assert first.predicted == first.cached == 0
        assert again.predicted == again.cached == 119 // sizes[again.worker] * sizes[again.worker]
        firsts.append(first)
    assert {answer.worker for answer in firsts} == sizes.keys()


def test_content_in_parts_is_rendered_for_each_engine(gateway: GatewayProcess) -> None:
    """SGLang joins parts by a blank, vLLM by a line's end: the same request has other tokens on each."""
    for number in range(NUM_CONVERSATIONS):
        parts = [{"type": "text", "text": text(f"part {number} {i}", 30)} for i in range(3)]
        messages = [{"role": "user", "content": parts}]
        answers = [
            ask(gateway, "/v1/chat/completions", {"messages": messages, "max_tokens": 2}) for _ in range(2)
        ]
        assert [answer.predicted for answer in answers] == [answer.cached for answer in answers]
        assert answers[1].worker == answers[0].worker
        assert answers[1].cached > answers[1].body["usage"]["prompt_tokens"] // 2
