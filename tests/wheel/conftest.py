"""The wheel, and an environment of its own in which nothing leads to the checkout."""

import os
from pathlib import Path

import pytest

from tests.wheel.environment import built, copied, done, environment, made_once, pip

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all processes of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    if given := os.environ.get("GATEWAY_WHEEL"):
        return Path(given).resolve()
    with made_once(shared / "wheel") as folder:
        if folder is not None:
            built(copied(folder / "sources"), folder, "bdist_wheel")
    return next((shared / "wheel").glob("*.whl"))


@pytest.fixture(scope="session")
def python(shared: Path, wheel: Path) -> Path:
    """Interpreter of an environment with the wheel, its dependencies, and packages of others that have the
    names `gateway` and `engines` and cannot be imported."""
    path = shared / "installed"
    with made_once(path) as folder:
        if folder is not None:
            packages = environment(folder)
            done(pip(folder, "install", "--no-deps", "--no-index", str(wheel)))
            for name in ("gateway", "engines"):
                (packages / name).mkdir()
                (packages / name / "__init__.py").write_text(f"raise RuntimeError('{name} of others')\n")
    return path / "bin/python"
