"""Random order of the tests, repeatable by its seed: `ORDER=7 python -m pytest -p tests.support.shuffle`.

Files of tests change their order, and the tests within each file; a file stays together, since its tests
share what they started. All processes of a run have the same order.
"""

import os
import random
from collections import defaultdict

import pytest

SEED = os.environ.get("ORDER", "1")


def pytest_report_header() -> str:
    return f"order: ORDER={SEED}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    chance = random.Random(SEED)
    names = sorted(files)
    chance.shuffle(names)
    for name in names:
        chance.shuffle(files[name])
    items[:] = [item for name in names for item in files[name]]
