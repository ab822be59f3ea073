"""Half-way through a rolling upgrade of real SGLang servers: two versions of one model side by side. The
newer one has larger pages, other events, and keeps salts apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_figures import EngineFigures
from tests.support.engine_talk import chat, gateway_of, ids, post, text
from tests.support.gateway_process import GatewayProcess
from tests.support.tenants import keys_of, salted

PAGE = 16
NUM_CONVERSATIONS = 8

Pair = tuple[SglangWorker, SglangWorker]


@pytest.fixture(scope="module")
def workers(start_module_sglang: Start) -> Pair:
    """The older server with pages of one token (larger ones need a GPU), and the newer one."""
    older, newer = start_module_sglang(is_older=True), start_module_sglang(page_size=PAGE)
    return older.wait_ready(), newer.wait_ready()


@pytest.fixture(scope="module")
def gateway(workers: Pair) -> Iterator[GatewayProcess]:
    with gateway_of(*workers) as process:
        yield process


def id_of(worker: SglangWorker) -> str:
    return f"127.0.0.1:{worker.port}"


def test_each_version_is_predicted_by_its_own_pages_and_prompts(
    gateway: GatewayProcess, workers: Pair, figures: EngineFigures
) -> None:
    answers = []
    for number in range(NUM_CONVERSATIONS):
        turns = [text(f"upgrade {number}", 60)]
        first = chat(gateway, *turns)
        second = chat(gateway, *turns, first.text, text(f"more {number}", 20))
        assert second.worker == first.worker
        assert second.cached > first.body["usage"]["prompt_tokens"] // 2
        answers += [first, second]
    pairs = [(answer.predicted, answer.cached) for answer in answers]
    figures.add_equal("SGLang 0.5.10.post1 and 0.5.23", pairs)
    assert [predicted for predicted, _ in pairs] == [cached for _, cached in pairs]
    assert {answer.worker for answer in answers} == {id_of(worker) for worker in workers}


def test_check_judges_the_chats_of_each_version_apart(gateway: GatewayProcess, workers: Pair) -> None:
    """The older one's /tokenize takes texts only: without a tokenizer here its chats are blind."""
    older, newer = workers
    found = gateway.check("--worker", older.url)
    assert (
        "texts exact and verified, chats load only" in found and "its own /tokenize takes no chats" in found
    )
    assert ": exact and verified" in gateway.check("--worker", newer.url)
    for worker in workers:
        given = gateway.check("--worker", worker.url, "--tokenizer", str(worker.model))
        assert ": exact and verified" in given and "WRONG" not in given, given


def test_tenants_go_to_the_version_that_keeps_them_apart(workers: Pair, tmp_path: Path) -> None:
    older, newer = workers
    (one,), keys = keys_of(tmp_path, "one")
    with gateway_of(*workers, flags=(*salted(tmp_path), *keys)) as gateway:
        for number in range(6):
            body = {"model": "m", "prompt": ids(f"tenant {number}", 60), "max_tokens": 2}
            answer = post(gateway, "/v1/completions", body, **one)
            assert (answer.status, answer.worker) == (200, id_of(newer))
        assert f"worker {older.url}: tenants' caches are shared; it gets no tenant's request" in gateway.log()
