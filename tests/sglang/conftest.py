"""Real SGLang servers for the tests in this folder, all of them marked `engines` (`make test-engines`).

A start costs 25–60 s and 2.4 GB, so the tests of a module share theirs (`start_module_sglang`); a test that
kills or flushes a server hands it back running.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.engine import PYTHON, SglangOptions, SglangWorker
from tests.support.engine_model import ensure_model

Start = Callable[..., SglangWorker]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/sglang/"):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(scope="session")
def sglang_model() -> Path:
    """The model's directory, which is also the tokenizer's."""
    if not PYTHON.exists():
        pytest.fail("no engine: `make test-engines` installs it, SGLANG_PYTHON names another")
    return ensure_model(PYTHON)


@pytest.fixture(scope="module")
def start_module_sglang(sglang_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start_module_sglang(page_size=16, ...)`: started, not yet ready; stopped after the module."""
    with ExitStack() as stack:

        def start(**options: Any) -> SglangWorker:
            log = tmp_path_factory.mktemp("sglang") / "engine.log"
            worker = SglangWorker(sglang_model, log, SglangOptions(**options))
            stack.callback(worker.stop)
            return worker.start()

        yield start
