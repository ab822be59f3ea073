"""`pip install kvgate` from an index, and the sdist: what `pipx run kvgate demo` and `uvx kvgate demo` do."""

import re
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.wheel.demo import answers, demo
from tests.wheel.environment import built, copied, done, environment, pip


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def index(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """URL of a package index on loopback, which has this wheel."""
    page = tmp_path / "index/simple/kvgate"
    page.mkdir(parents=True)
    (page / wheel.name).symlink_to(wheel)
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path / "index")))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_the_demo_runs_after_an_installation_from_an_index(index: str, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    environment(folder)
    done(pip(folder, "install", "--index-url", index, "kvgate"))
    with demo(folder / "bin/python", tmp_path) as process:
        await answers(process)


def test_a_wheel_of_the_sdist_has_the_same_files(wheel: Path, tmp_path: Path) -> None:
    built(copied(tmp_path / "sources"), tmp_path, "sdist")
    (sdist,) = tmp_path.glob("kvgate-*.tar.gz")
    done(["tar", "-xzf", str(sdist), "-C", str(tmp_path)])
    built(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path, "bdist_wheel")
    assert _sources(next(tmp_path.glob("*.whl"))) == _sources(wheel)


def _sources(wheel: Path) -> set[str]:
    """Names of its files without machine code, and without those that name its platform."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if not re.search(r"\.so$|/(?:WHEEL|RECORD|top_level\.txt)$", name)}
