"""`kvgate status`, `top` and `why` beside a running gateway."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.commands.status import fleet_lines, is_well
from loadtest.fleet import GATEWAY, SIM_READY, first_match, running
from tests.support.gateway_process import GatewayProcess, clean_environment
from tests.support.patience import patience

pytestmark = pytest.mark.process

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with running("sim") as sim:
        (url,) = first_match(sim, SIM_READY)
        with GatewayProcess("--worker", url, "--expose-headers") as gateway:
            yield gateway


def kvgate(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    command = [*GATEWAY, *arguments, "--gateway", gateway.admin_url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience(60), env=clean_environment()
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def post(url: str, body: object) -> str | None:
    head = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=patience(20)) as answer:
        answer.read()
        decision: str | None = answer.headers["x-kvgate-decision"]
        return decision


def test_the_status_has_each_worker_and_its_exit_code_says_if_all_are_well(gateway: GatewayProcess) -> None:
    (worker,) = gateway.worker_ids()
    code, out = kvgate(gateway, "status")
    first, _, titles, row, *_ = out.splitlines()
    assert (code, first) == (0, "1 workers: 1 active")
    assert titles.split()[:4] == ["worker", "state", "model", "stream"]
    assert row.split()[:3] == [worker, "active", "m"]
    post(gateway.admin_url + "/admin/workers", {"url": NOWHERE})
    code, out = kvgate(gateway, "status")
    assert code == 1 and "2 workers: 1 active, 1 joining" in out
    code, out = kvgate(gateway, "status", "--json")
    assert {each["state"] for each in json.loads(out)["endpoints"]} == {"joined", "joining"}


def test_load_that_an_engine_does_not_report_is_shown_as_unknown() -> None:
    worker = {"id": "w:1", "state": "active", "reason": None, "models": ["m"], "stream": None, "blind": None}
    worker |= {"running": None, "waiting": None, "kv_usage": None, "in_flight": 2, "remote_in_flight": 1}
    endpoint = {"url": "u", "last_error": None, "workers": [worker | {"predictions": {"exact_share": None}}]}
    row = list(fleet_lines({"key_files": [], "endpoints": [endpoint]}))[3]
    assert row.split() == ["w:1", "active", "m", "none", "?", "?", "?", "3"]


def test_top_prints_again(gateway: GatewayProcess) -> None:
    command = [*GATEWAY, "top", "--gateway", gateway.admin_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as top:
        assert top.stdout is not None
        sums = []
        for line in top.stdout:
            sums += [line] if " workers: " in line else []
            if len(sums) == 2:
                top.terminate()
                break
    assert len(sums) == 2 and "\x1b" not in sums[0]


def test_an_interrupt_ends_top_without_a_traceback(gateway: GatewayProcess) -> None:
    command = [*GATEWAY, "top", "--gateway", gateway.admin_url]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=clean_environment(), **pipes) as top:
        assert top.stdout is not None and top.stdout.readline()
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=patience(60))
    assert (top.returncode, err) == (130, "")


@pytest.mark.parametrize("command", ["status", "why", "explain", "adapter"])
def test_another_server_at_the_address_is_recognised(
    gateway: GatewayProcess, tmp_path: Path, command: str
) -> None:
    """A worker answers 404 in its own form, or another question's answer."""
    (tmp_path / "body").write_text('{"model": "m", "prompt": "x"}')
    arguments = {
        "status": ["status"],
        "why": ["why", "0" * 24],
        "explain": ["explain", "--prompt-file", str(tmp_path / "body")],
        "adapter": ["adapter", "list"],
    }[command]
    (worker,) = [f"http://{name}" for name in gateway.worker_ids()]
    done = subprocess.run(
        [*GATEWAY, *arguments, "--gateway", worker],
        capture_output=True, text=True, timeout=patience(60), env=clean_environment(),
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "not a gateway's admin address" in done.stdout + done.stderr
    assert "such as a worker; the admin port is --admin-port" in done.stdout + done.stderr


def test_a_decision_is_explained_with_its_outcome(gateway: GatewayProcess) -> None:
    body = {"model": "m", "prompt": "a word " * 50, "max_tokens": 2}
    post(gateway.url + "/v1/completions", body)
    decision = post(gateway.url + "/v1/completions", body)
    assert decision
    (worker,) = gateway.worker_ids()
    code, out = kvgate(gateway, "why", decision)
    assert code == 0 and out.startswith(f"m -> {worker}, by expected_ttft: ")
    assert "outcome: ended, status 200; the engine reports " in out
    assert "overlap    cached prompt tokens" in out and "evict_s" not in out
    code, out = kvgate(gateway, "why", decision, "--json")
    assert json.loads(out)["id"] == decision
    assert kvgate(gateway, "why", "0" * 24) == (
        1,
        "the gateway answers 404: no such decision; the gateway keeps only the latest\n",
    )


def test_a_gateway_that_does_not_answer_is_named() -> None:
    command = [*GATEWAY, "status", "--gateway", NOWHERE]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience(60), env=clean_environment()
    )
    assert done.returncode == 2 and f"--gateway {NOWHERE}: not a gateway's admin address" in done.stderr


def test_keys_that_are_outdated_are_named_with_their_age() -> None:
    file = {"name": "key_file", "path": "/k", "digests": ["d"], "age_s": 3.0, "error": None}
    answer: dict[str, list[object]] = {"endpoints": [], "key_files": [file]}
    assert is_well(answer) and list(fleet_lines(answer)) == ["no workers"]
    answer["key_files"] = [file | {"age_s": 600.0, "error": "it cannot be read"}]
    assert not is_well(answer)
    assert list(fleet_lines(answer))[0] == (
        "keys of /k are 10 min old, and revoked ones still work: it cannot be read"
    )


def test_a_model_with_too_few_healthy_workers_is_named() -> None:
    answer = {"endpoints": [], "key_files": [], "in_panic": {"m": 2}}
    expected = "too few workers of m are healthy: 2 with late probes get requests too"
    assert list(fleet_lines(answer)) == [expected, "no workers"]
