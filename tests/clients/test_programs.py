"""Programs of docs/guides/decision-service.md in Go and Rust: compiled, and run before a simulated worker."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet import RunningFleet, simulated_fleet
from loadtest.ports import free_port
from tests import ROOT
from tests.support.patience import patience, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

TOOLS = ROOT / ".cache" / "clients" / "root" / "usr"
GUIDE = (ROOT / "docs" / "guides" / "decision-service.md").read_text()
CARGO = shutil.which("cargo")
PROTOC = f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n'
BODY = '{"model": "sim", "prompt": "hello", "max_tokens": 4}'
EVENT = re.compile(r'kvgate_decide_events_total\{kind="([a-z_]+)"\} (\d+)')


def blocks(language: str) -> list[str]:
    """Blocks of the guide in a language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=patience(1500),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def protoc(folder: Path) -> Path:
    """The compiler of messages under its own name."""
    path = folder / "bin" / "protoc"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROTOC)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[RunningFleet, str]]:
    """A gateway before a simulated worker, and the address of its decision service."""
    port = free_port()
    with simulated_fleet(1, ("--model", "sim"), ("--epp-port", str(port))) as running:
        yield running, f"127.0.0.1:{port}"


def test_the_program_in_go(fleet: tuple[RunningFleet, str], tmp_path: Path) -> None:
    home = tmp_path / "src" / "example.com" / "router"
    home.mkdir(parents=True)
    (home / "main.go").write_text(*blocks("go"))
    (command,) = [
        line for block in blocks("bash") for line in block.splitlines() if line.startswith("protoc")
    ]
    tools = f"{protoc(tmp_path).parent}:{TOOLS / 'bin'}:{TOOLS / 'lib' / 'go-1.24' / 'bin'}"
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "GO111MODULE": "off",
        "GOPATH": f"{tmp_path}:{TOOLS / 'share' / 'gocode'}",
        "GOROOT": str(TOOLS / "lib" / "go-1.24"),
        "GOCACHE": str(ROOT / ".cache" / "clients" / "go"),
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    command = command.replace("-I proto", f"-I {ROOT / 'proto'}").replace(
        "_out=.", f"_out={tmp_path / 'src'}"
    )
    run(["sh", "-c", command], tmp_path, **environment)
    run(["go", "vet", "."], home, **environment)
    run(["go", "build", "-o", "router", "."], home, **environment)
    routes(home / "router", *fleet)


@pytest.mark.skipif(CARGO is None, reason="cargo is not installed")
def test_the_program_in_rust(fleet: tuple[RunningFleet, str], tmp_path: Path) -> None:
    build, main = blocks("rust")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text(main)
    (tmp_path / "build.rs").write_text(build)
    (tmp_path / "Cargo.toml").write_text(*blocks("ini"))
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (tmp_path / ".cargo").mkdir()
    crates = TOOLS / "share" / "cargo" / "registry"
    (tmp_path / ".cargo" / "config.toml").write_text(
        f'[source.crates-io]\nreplace-with = "debian"\n[source.debian]\ndirectory = "{crates}"\n'
    )
    assert CARGO is not None
    target = ROOT / ".cache" / "clients" / "rust"
    run(
        [CARGO, "build", "--offline"], tmp_path,
        PROTOC=str(protoc(tmp_path)), CARGO_TARGET_DIR=str(target), RUSTFLAGS="-Dwarnings",
    )  # fmt: skip
    routes(target / "debug" / "router", *fleet)


def routes(program: Path, fleet: RunningFleet, target: str) -> None:
    """Run the program: its request is answered by the worker, reported, and released."""
    before = events(fleet)
    answer = json.loads(run([str(program), target, BODY], program.parent))
    assert answer["object"] == "text_completion" and answer["choices"][0]["text"]
    after = events(fleet)
    assert {kind: after[kind] - before.get(kind, 0) for kind in ("decided", "report")} == {
        "decided": 1,
        "report": 1,
    }
    refused = json.loads(
        run([str(program), target, '{"model": "unknown", "prompt": "hello"}'], program.parent)
    )
    assert refused["error"]["code"] == "model_not_found"
    wait_until(lambda: "kvgate_decide_open 0" in page(fleet), "the booking is released")


def page(fleet: RunningFleet) -> str:
    with urllib.request.urlopen(f"{fleet.admin_url}/metrics") as metrics:
        text: str = metrics.read().decode()
        return text


def events(fleet: RunningFleet) -> dict[str, int]:
    return {kind: int(number) for kind, number in EVENT.findall(page(fleet))}
