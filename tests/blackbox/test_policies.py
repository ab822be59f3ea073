"""Policies of a file, as operators use them: reloaded, rejected, failing, compared."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.real_gateway import PATIENT, refusal
from tests.support.blackbox.scripted_worker import FakeWorker, says
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.patience import until

BY_NAME = """
def choose(query, candidates, rng):
    return sorted(range(len(candidates)), key=lambda i: candidates[i].id)[{place}]
"""
STAY = "keeping the current"


async def two_workers(bench: Bench) -> list[FakeWorker]:
    workers = [await bench.worker(), await bench.worker()]
    return sorted(workers, key=lambda worker: worker.id)


async def served_by(bench: Bench, workers: list[FakeWorker]) -> list[int]:
    """Workers of the next four requests, each on a new connection."""
    places = []
    for _ in range(4):
        before = [len(worker.calls) for worker in workers]
        assert (await bench.ask(post(completion()))).status == 200
        places += [i for i, worker in enumerate(workers) if len(worker.calls) > before[i]]
    return places


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_file_is_reloaded_on_sighup_and_a_broken_one_keeps_the_old(
    tmp_path: Path, processes: int
) -> None:
    path = tmp_path / "own.py"
    path.write_text(BY_NAME.format(place=0))
    async with running("--policy-file", str(path), "--processes", str(processes)) as bench:
        gateway, workers = bench.gateway, await two_workers(bench)
        assert await served_by(bench, workers) == [0] * 4

        path.write_text(BY_NAME.format(place=-1))
        gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: _num_logged(gateway.log, "policies reloaded") == processes, "all reloaded it")
        assert await served_by(bench, workers) == [1] * 4

        path.write_text("def choose(:\n")
        gateway.process.send_signal(signal.SIGHUP)
        await gateway.logged(rf"{STAY} configuration: .*own\.py:1: invalid syntax")
        assert await served_by(bench, workers) == [1] * 4
        shown = (await gateway.admin("GET", "/admin/policies")).json
        assert shown["policy"] == "own" and shown["file"]["error"].endswith("own.py:1: invalid syntax")
        reported = await gateway.admin("POST", "/admin/policies/reload", b"{}")
        assert reported.status == 400 and "invalid syntax" in reported.json["error"]["message"]
        gateway.expected += [line for line in gateway.log if STAY in line]


async def test_a_restarted_process_has_the_policy_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(BY_NAME.format(place=0))
    async with running("--policy-file", str(path), "--processes", "2") as bench:
        gateway, workers = bench.gateway, await two_workers(bench)
        path.write_text("def choose(:\n")
        line = await gateway.logged(r"process 0 \(pid (\d+)\) is ready")
        os.kill(int(line[1]), signal.SIGKILL)
        await gateway.expect_fault(r"process 0 \(pid \d+\): died")
        await until(lambda: _num_logged(gateway.log, "process 0 (pid") >= 3, "process 0 is there again")
        assert await served_by(bench, workers) == [0] * 4


async def test_a_policy_that_fails_costs_no_request_and_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "def choose(query, candidates, rng):\n"
        "    return 0 if candidates[0].id.startswith('10.') else query.nothing\n"
    )
    async with running("--policy-file", str(path)) as bench:
        await two_workers(bench)
        assert [(await bench.ask(post(completion()))).status for _ in range(5)] == [200] * 5
        await bench.gateway.expect_fault(r"policy own failed; .*own\.py:2: AttributeError")
        metrics = await bench.gateway.metrics()
        assert metrics['kvgate_policy_fallbacks_total{policy="own",reason="raised"}'] == 5


async def explained(bench: Bench, path: Path, body: str, *more: str) -> tuple[int | None, str]:
    """Output of `kvgate explain`, and its exit code."""
    path.write_text(body)
    url = f"http://127.0.0.1:{bench.gateway.admin_port}"
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "explain", "--prompt-file", str(path), "--gateway", url, *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE_S):
        printed, _ = await process.communicate()
    return process.returncode, printed.decode()


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_running_gateway_explains_a_preview_and_changes_nothing(
    tmp_path: Path, processes: int
) -> None:
    path, body = tmp_path / "p.json", completion("text").decode()
    async with running("--processes", str(processes), PATIENT) as bench:
        workers = await two_workers(bench)
        code, text = await explained(bench, path, body)
        first, _, _, titles, chosen, _, _, *legend = text.splitlines()
        assert code == 0 and re.fullmatch(r"m, 3 prompt tokens \(worker\): \S+, by expected_ttft", first)
        assert titles.split()[:4] == ["worker", "cost", "start_s", "prefill_s"], "those with a value"
        assert [line.split()[0] for line in legend][:3] == ["cost", "start_s", "prefill_s"]
        assert chosen.startswith("> ") and chosen.split()[1] in {worker.id for worker in workers}
        code, text = await explained(bench, path, body, "--json")
        assert code == 0 and [len(each["terms"]) for each in json.loads(text)["candidates"]] == [9, 9]
        code, text = await explained(bench, path, completion(model="other").decode())
        assert code == 1 and text.startswith("the gateway would answer 404: the model 'other' does not exist")
        code, text = await explained(bench, path, "{")
        assert code == 1 and text.startswith("the gateway would answer 400: the body is not a JSON object")
        assert [worker.calls for worker in workers] == [[], []]
        assert (await bench.gateway.admin("GET", "/admin/decisions")).json == {"decisions": []}


async def test_the_record_of_a_decision_has_the_terms_of_its_costs() -> None:
    async with running("--policy", "latency_slo", "--expose-headers") as bench:
        await two_workers(bench)
        answer = await bench.ask(post(completion()))
        decision = (answer.value(b"x-kvgate-decision") or b"").decode()
        record = (await bench.gateway.admin("GET", f"/admin/decisions/{decision}")).json
        assert record["policy"] == "latency_slo"
        for each in record["candidates"]:
            assert each["cost"] == pytest.approx(sum(each["terms"].values()))


ERROR_BODY = (
    b'{"choices":[{"index":0,"text":"x"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1}}}'
)


@pytest.mark.parametrize("processes", [1, 2])
async def test_sessions_are_split_between_policies_and_scores_shown(processes: int) -> None:
    flags = (
        "--policy-ab",
        "least_load=80",
        "--policy-ab",
        "random=20",
        "--expose-headers",
        "--processes",
        str(processes),
    )
    async with running(*flags) as bench:
        for worker in await two_workers(bench):
            worker.script = says(wire(200, ERROR_BODY, (b"Content-Type", b"application/json")))
        by_session: dict[int, set[str]] = {}
        for i in range(60):
            answer = await bench.ask(post(completion(), (b"X-Session-Id", b"s%d" % (i % 20))))
            decision = (answer.value(b"x-kvgate-decision") or b"").decode()
            record = (await bench.gateway.admin("GET", f"/admin/decisions/{decision}")).json
            by_session.setdefault(i % 20, set()).add(record["policy"])
        assert {len(policies) for policies in by_session.values()} == {1}
        assert set.union(*by_session.values()) == {"least_load", "random"}
        shown = (await bench.gateway.admin("GET", "/admin/policies")).json
        arms = {arm["name"]: arm for arm in shown["scores"]}
        expected = {name: sum(3 for each in by_session.values() if name in each) for name in arms}
        assert {name: arm["requests"] for name, arm in arms.items()} == expected
        assert [(arm["share"], arm["failed_requests"], arm["hit_rate"]) for arm in arms.values()] == [
            (0.8, 0, 0.3333),
            (0.2, 0, 0.3333),
        ]
        metrics = await bench.gateway.metrics()
        assert metrics['kvgate_policy_requests_total{policy="random"}'] == expected["random"]


async def test_shadow_policies_are_compared() -> None:
    shadows = ("--policy-shadow", "expected_ttft", "--policy-shadow", "least_load")
    async with running("--policy", "round_robin", *shadows, PATIENT) as bench:
        for worker in await two_workers(bench):
            worker.script = says(SSE_HEAD + chunked(event("a"), DONE))
        for _ in range(10):
            assert (await bench.ask(post(completion(stream=True)))).status == 200
        shown: dict[str, Any] = {}

        async def is_worked_off() -> bool:
            shown.update((await bench.gateway.admin("GET", "/admin/policies")).json)
            has_ended = shown["shadow"][0]["measured_ttft_s"] is not None
            return has_ended and [each["compared"] for each in shown["shadow"]] == [10, 10]

        await until(is_worked_off, "all are compared")
        assert [(arm["name"], arm["requests"]) for arm in shown["scores"]] == [("round_robin", 10)]
        assert shown["scores"][0]["ttft_p90_s"] >= shown["scores"][0]["ttft_p50_s"] >= 0  # in ms: may be 0
        predicts, plain = shown["shadow"]
        assert (predicts["name"], predicts["compared_prompt_tokens"]) == ("expected_ttft", 30)
        assert predicts["predicted_ttft_s"] > 0 and 0 <= predicts["agreement_share"] <= 1
        assert (plain["name"], plain["predicted_ttft_s"], shown["dropped_decisions"]) == (
            "least_load",
            None,
            0,
        )
        metrics = await bench.gateway.metrics()
        assert metrics['kvgate_shadow_decisions_total{policy="least_load"}'] == 10


async def test_a_policy_is_tested_in_the_build_of_the_gateway(tmp_path: Path) -> None:
    """The command uses the interpreter of the running gateway."""
    path = tmp_path / "own.py"
    path.write_text("def choose(query, candidates, rng):\n    return rng.randrange(len(candidates))\n")
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "policy", "test", str(path), "--policy-budget-ms", "60000"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE_S):
        printed, _ = await process.communicate()
    assert printed.decode().splitlines()[-1] == "9 of 9 checks passed", printed.decode()
    assert process.returncode == 0


async def test_unknown_names_are_rejected_with_the_known_ones(tmp_path: Path) -> None:
    assert "there is no policy 'best'; known: expected_ttft, " in await refusal("--policy", "best")
    config = tmp_path / "kvgate.toml"
    config.write_text('[policy]\nname = "mine"\n[policies.mine]\nscorers = { best = 1 }\n')
    reported = await refusal("--config", str(config))
    assert "policies.mine.scorers: there is no scorer 'best'; known: prefix_overlap, " in reported
    assert "own.py: cannot be read" in await refusal("--policy-file", str(tmp_path / "own.py"))


def _num_logged(log: list[str], words: str) -> int:
    return sum(words in line for line in log)
