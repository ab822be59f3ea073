"""Real MLX servers for the tests in this folder, all of them marked `engines` (`make test-engines`)."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.mlx.engine import PYTHON, MlxWorker
from tests.sglang.engine import PYTHON as MODEL_MAKER
from tests.support.engine_model import ensure_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/mlx/"):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MlxWorker, MlxWorker]]:
    """Two ready servers of one model, which SGLang's environment makes: MLX's has no torch."""
    if not PYTHON.exists():
        pytest.fail("no engine: `make test-engines` installs it, MLX_PYTHON names another")
    model = ensure_model(MODEL_MAKER)
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            worker = MlxWorker(model, tmp_path_factory.mktemp("mlx") / "engine.log")
            stack.callback(worker.stop)
            started.append(worker.start())
        one, other = (worker.wait_ready() for worker in started)
        yield one, other
