"""Real engines for the tests in this folder, marked `vllm` (`make test-vllm`) or `engines` (`test-engines`).

A start costs 20–60 s and 2.6 GB, so tests share engines: `vllm_worker` for tests that only send requests,
`vllm_pair` for the gateway's end-to-end tests (which may kill and restart, and leave the pair running),
`vllm_small` for evictions, `vllm_pd` for disaggregation, and `start_vllm` for engines with other flags.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_model import ensure_model, make_adapter
from tests.vllm.engine import ENGINE, VllmOptions, VllmWorker
from tests.vllm.pd import PdFleet, start_pd
from tests.vllm.sdk import close_clients


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/vllm/") and item.get_closest_marker("engines") is None:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(autouse=True)
def clients_are_closed() -> Iterator[None]:
    """Close the clients that a test opened."""
    yield
    close_clients()


@pytest.fixture(scope="session")
def vllm_model() -> Path:
    """The model's directory, which is also the tokenizer's."""
    if not ENGINE.exists():
        pytest.fail("no engine: `make test-vllm` installs one, VLLM_BIN names another")
    return ensure_model(ENGINE.parent / "python")


@pytest.fixture(scope="session")
def vllm_worker(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorker]:
    """A worker with the LoRA adapter `adapter-a`, for tests that leave it running on its ports."""
    lora = [("adapter-a", make_adapter(tmp_path_factory.mktemp("lora") / "adapter-a"))]
    with ExitStack() as stack:
        more = ("--trust-request-chat-template",)  # test_tokenize.py sends templates of its own
        more += ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")  # agents send tools
        worker = _start(stack, vllm_model, tmp_path_factory, lora=lora, extra_args=more)
        yield worker.wait_ready()


@pytest.fixture(scope="session")
def vllm_pair(
    vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmWorker, VllmWorker]]:
    """Two workers of one model, started side by side."""
    with ExitStack() as stack:
        first = _start(stack, vllm_model, tmp_path_factory)
        second = _start(stack, vllm_model, tmp_path_factory)
        yield first.wait_ready(), second.wait_ready()


@pytest.fixture(scope="session")
def vllm_small(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorker]:
    """A worker with a cache of 60 blocks, which soon evicts, and with a replay of all events."""
    with ExitStack() as stack:
        worker = _start(stack, vllm_model, tmp_path_factory, num_gpu_blocks_override=60, max_model_len=1024)
        yield worker.wait_ready()


@pytest.fixture(scope="session")
def vllm_pd(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PdFleet]:
    """A prefill worker and two decode workers, for tests that leave them running."""
    with ExitStack() as stack:
        yield start_pd(partial(_start, stack, vllm_model, tmp_path_factory))


@pytest.fixture(scope="module")
def start_module_vllm(
    vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., VllmWorker]]:
    """The function of `start_vllm`, for an engine that the tests of a module share."""
    with ExitStack() as stack:
        yield partial(_start, stack, vllm_model, tmp_path_factory)


@pytest.fixture
def start_vllm(
    vllm_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., VllmWorker]]:
    """Function that starts an engine with options, not ready yet; the engine stops after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> VllmWorker:
            return _start(stack, vllm_model, tmp_path_factory, **options)

        yield start


def _start(
    stack: ExitStack, model: Path, tmp_path_factory: pytest.TempPathFactory, **options: Any
) -> VllmWorker:
    log = tmp_path_factory.mktemp("vllm") / "engine.log"
    worker = VllmWorker(model, log, VllmOptions(**options))
    stack.callback(worker.stop)
    return worker.start()
