"""`kvgate adapter` against a running gateway, of one process and of two, with keys."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY, SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess, clean_environment
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process


def kvgate(*arguments: str, key: str = "") -> tuple[int, str]:
    environment = clean_environment() | ({"KVGATE_ADMIN_KEY": key} if key else {})
    done = subprocess.run(
        [*GATEWAY, *arguments], capture_output=True, text=True, env=environment, timeout=patience(60)
    )
    return done.returncode, done.stdout + done.stderr


def new_key(*flags: str) -> tuple[str, str]:
    done = subprocess.run(
        [*GATEWAY, "key", "new", *flags], capture_output=True, text=True, timeout=patience(60)
    )
    return done.stderr.split()[-1], done.stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_adapter_command_loads_and_unloads_on_workers(tmp_path: Path, processes: str) -> None:
    with ExitStack() as opened:
        urls = []
        for seed in range(2):
            sim = opened.enter_context(running("sim", "--port", "0", "--runtime-lora", "--seed", str(seed)))
            urls.append(first_match(sim, SIM_READY)[0])
        key, line = new_key("--tenant", "ops", "--admin")
        file = tmp_path / "keys"
        file.write_text(line)
        flags = ("--key-file", str(file), "--admin-load-adapters", "--processes", processes)
        workers = [flag for url in urls for flag in ("--worker", url)]
        gateway = opened.enter_context(GatewayProcess(*workers, *flags))
        wait_until(lambda: [w["is_up"] for w in gateway.workers()] == [True, True], "all workers are up")
        at = ("--gateway", gateway.admin_url)
        code, output = kvgate("adapter", "load", "a", "/adapters/a", *at)
        assert (code, "401" in output) == (1, True), "without a key"
        code, output = kvgate("adapter", "load", "a", "/adapters/a", *at, key=key)
        assert (code, output.count("done: Success")) == (0, 2), output
        for _ in range(4):  # whichever process answers
            assert _is_answered(gateway, "a", key)
        assert kvgate("adapter", "list", *at) == (0, f"a (m): {urls[0]}, {urls[1]}\n")
        code, output = kvgate("adapter", "unload", "a", "--worker", urls[0], *at, key=key)
        assert (code, output) == (0, f"{urls[0]}: done: Success: LoRA adapter 'a' removed successfully.\n")
        assert kvgate("adapter", "list", *at) == (0, f"a (m): {urls[1]}\n")
        code, output = kvgate("adapter", "load", "b", "/missing", *at, key=key)
        assert (code, output.count("FAILED: answered 404")) == (1, 2)
        assert kvgate("adapter", "load", "b", "/b", "--worker", "http://unknown:1", *at, key=key) == (
            1,
            "the gateway answers 404: no worker 'http://unknown:1'; use its URL or its id. No worker was "
            "asked\n",
        )
        assert key not in gateway.log()


def _is_answered(gateway: GatewayProcess, model: str, key: str) -> bool:
    import urllib.request

    body = json.dumps({"model": model, "prompt": [5] * 20, "max_tokens": 1}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}", "connection": "close"}
    ask = urllib.request.Request(f"{gateway.url}/v1/completions", body, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        ask, timeout=patience(30)
    ) as answer:
        return bool(answer.status == 200)


def test_adapter_command_names_an_unreachable_gateway_and_a_missing_key_file(tmp_path: Path) -> None:
    code, output = kvgate("adapter", "list", "--gateway", "http://127.0.0.1:9")
    assert (
        code,
        output.startswith("kvgate: --gateway http://127.0.0.1:9: not a gateway's admin address"),
    ) == (
        2,
        True,
    )
    code, output = kvgate("adapter", "list", "--admin-key-file", os.fspath(tmp_path / "none"))
    assert (code, "--admin-key-file" in output) == (2, True)
