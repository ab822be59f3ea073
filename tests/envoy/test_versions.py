"""Configurations of deploy/envoy in several versions of Envoy (`make test-envoy-versions`)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.envoy.envoy import FOLDER, behind_envoy
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.patience import patience

pytestmark = pytest.mark.envoy_versions

VERSIONS = Path(__file__).with_name("versions.txt").read_text().split()
SELECTED = re.compile(r" *selected_host_key: .*\n")
"""Known from 1.38 on; the guide says to leave the line out before."""


def binary(version: str) -> str:
    return str(Path(os.environ["ENVOYS"]) / version / "envoy" / "_bin" / "envoy")


def is_old(version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) < (1, 38)


def validated(version: str, path: Path) -> "subprocess.CompletedProcess[bytes]":
    command = [binary(version), "--mode", "validate", "-c", str(path)]
    return subprocess.run(command, capture_output=True, timeout=patience(120))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_each_version_accepts_each_configuration(version: str, path: Path, tmp_path: Path) -> None:
    done = validated(version, path)
    if is_old(version) and SELECTED.search(path.read_text()):
        assert done.returncode and b"selected_host_key" in done.stderr
        path = tmp_path / path.name
        path.write_text(SELECTED.sub("", (FOLDER / path.name).read_text()))
        done = validated(version, path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["envoy.yaml", "original-dst.yaml"])
async def test_each_version_follows_the_picker(version: str, name: str) -> None:
    text = (FOLDER / name).read_text()
    edits = [(line, "") for line in SELECTED.findall(text)] if is_old(version) else []
    flags = ("--policy", "round_robin")
    async with behind_envoy(2, *flags, name=name, edits=edits, binary=binary(version)) as setup:
        body = completion("a" * 2_000_000)  # 1.35 to 1.37 may repeat the last piece of a body over 1 MB
        for _ in range(2):
            assert (await setup.ask(post(body))).status == 200
            assert (await setup.ask(post(completion()))).status == 200
        assert [len(worker.calls) for worker in setup.workers] == [2, 2]
        assert {call.body for worker in setup.workers for call in worker.calls} == {body, completion()}
