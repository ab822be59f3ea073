"""Real servers of llama.cpp for the tests in this folder, all marked `engines` (`make test-engines`)."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.llamacpp.engine import SERVER, LlamaCppWorker, ensure_gguf
from tests.sglang.engine import PYTHON as MODEL_MAKER
from tests.support.engine_model import ensure_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/llamacpp/"):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(scope="session")
def model() -> Path:
    """The model's folder; SGLang's environment makes it, and llama.cpp's file of it."""
    return ensure_model(MODEL_MAKER)


@pytest.fixture(scope="module")
def workers(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaCppWorker, LlamaCppWorker]]:
    """Two ready servers of one model."""
    if not SERVER.exists():
        pytest.fail("no engine: `make test-engines` builds it, LLAMA_SERVER names another")
    file = ensure_gguf(MODEL_MAKER, model)
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            worker = LlamaCppWorker(file, tmp_path_factory.mktemp("llamacpp") / "engine.log")
            stack.callback(worker.stop)
            started.append(worker.start())
        one, other = (worker.wait_ready() for worker in started)
        yield one, other
