"""Admin port: metrics, workers at run time, explained decisions; and no prompt in any of its answers."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import (
    CHAT,
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    event,
    post,
    request,
    wire,
)
from tests.support.blackbox.scripted_worker import Call, FakeWorker, answer_ok, says
from tests.support.blackbox.strict_client import Cut
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

USAGE = {"prompt_tokens": 64, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}
PREDICTED = {"kvgate_scaling_backlog_seconds", "kvgate_scaling_ttft_seconds"}
GAUGES_IN_SECONDS = {"kvgate_kube_synced_seconds", "kvgate_scaling_cold_start_seconds", *PREDICTED}


async def test_health_and_readiness_on_both_ports(bench: Bench) -> None:
    client = await bench.client()

    async def statuses(path: str) -> tuple[int, int]:
        admin = await bench.gateway.admin("GET", path)
        return (await client.ask(request("GET", path))).status, admin.status

    assert await statuses("/health") == (200, 200)
    assert await statuses("/ready") == (503, 503)
    worker = await bench.worker("m", "org/name")
    assert await statuses("/ready") == (200, 200)
    assert await statuses("/ready?model=m") == (200, 200)
    assert await statuses("/ready?model=org/name") == (200, 200)
    assert await statuses("/ready?model=org%2Fname") == (200, 200)
    assert await statuses("/ready?model=missing") == (503, 503)
    await bench.gateway.drop(worker)
    assert await statuses("/ready?model=m") == (503, 503)


async def test_metrics_and_admin_are_not_on_the_client_port(bench: Bench) -> None:
    for path in ("/metrics", "/admin/workers", "/admin/decisions"):
        assert (await bench.ask(request("GET", path))).status == 404
    assert (await bench.gateway.admin("POST", "/v1/completions", completion())).status == 404


async def test_metric_names_carry_units_and_help() -> None:
    async with running("--probe-interval-s", "0.1") as bench:
        stream = [event("a"), event("b"), event("", usage=USAGE), DONE]
        worker = await bench.worker(script=says(SSE_HEAD + chunked(*stream)))
        await bench.ask(post(completion(list(range(64)), stream=True)))
        await bench.ask(post(b"{"))
        answer = await bench.gateway.admin("GET", "/metrics")
        assert (answer.value(b"content-type") or b"").startswith(b"text/plain")
        page = answer.body.decode()
        families = dict(re.findall(r"^# TYPE (kvgate_\w+) (\w+)$", page, re.MULTILINE))
        helps = dict(re.findall(r"^# HELP (kvgate_\w+) (.+)$", page, re.MULTILINE))
        assert set(families) == set(helps)
        for name, kind in families.items():
            assert (kind == "counter") == name.endswith("_total"), name
            is_duration = name.endswith("_seconds") and "_max_" not in name and name not in GAUGES_IN_SECONDS
            is_distribution = is_duration or name == "kvgate_ttft_prediction_error_ratio"
            assert (kind == "histogram") == is_distribution, name
        usage = f'kvgate_engine_kv_cache_usage_ratio{{worker="{worker.id}"}}'

        async def has_usage() -> bool:
            return (await bench.gateway.metrics())[usage] == 0.25

        await until(has_usage, "the worker's own load is known")
        samples = await bench.gateway.metrics()
        for name, value in {
            f'kvgate_worker_requests_total{{worker="{worker.id}"}}': 1,
            f'kvgate_worker_requests_in_flight{{worker="{worker.id}"}}': 0,
            f'kvgate_worker_booked_prompt_tokens{{worker="{worker.id}"}}': 0,
            f'kvgate_worker_prompt_tokens_total{{worker="{worker.id}"}}': 64,
            f'kvgate_worker_reported_cached_tokens_total{{worker="{worker.id}"}}': 32,
            f'kvgate_worker_output_tokens_total{{worker="{worker.id}"}}': 2,
            f'kvgate_ttft_seconds_count{{worker="{worker.id}"}}': 1,
            f'kvgate_worker_up{{worker="{worker.id}"}}': 1,
            'kvgate_responses_total{code="200"}': 1,
            'kvgate_responses_total{code="400"}': 1,
        }.items():
            assert samples.get(name) == value, name


async def test_a_decision_is_explained() -> None:
    usage = json.dumps({"choices": [{"index": 0, "text": "x"}], "usage": USAGE}).encode()
    async with running("--expose-headers") as bench:
        script = says(wire(200, usage, (b"Content-Type", b"application/json")))
        workers = [await bench.worker(script=script), await bench.worker(script=script)]
        ids = list(range(64))
        await bench.ask(post(completion(ids)))
        answer = await bench.ask(post(completion(ids)))
        decision = (answer.value(b"x-kvgate-decision") or b"").decode()
        record = (await bench.gateway.admin("GET", f"/admin/decisions/{decision}")).json
        assert record["id"] == decision
        assert (record["model"], record["worker"]) == (
            "m",
            (answer.value(b"x-kvgate-worker") or b"").decode(),
        )
        assert (record["prompt_tokens"], record["overlap_tokens"]) == (64, 48)
        assert record["reason"]
        assert {c["worker"] for c in record["candidates"]} == {worker.id for worker in workers}
        assert record["outcome"]["result"] == "ended"
        assert record["outcome"]["status"] == 200
        assert record["outcome"]["reported_cached_tokens"] == 32
        recent = (await bench.gateway.admin("GET", "/admin/decisions")).json["decisions"]
        assert recent[0] == decision
        assert len(recent) == 2
        assert (await bench.gateway.admin("GET", "/admin/decisions/none")).status == 404


async def test_workers_are_added_and_dropped_at_run_time(bench: Bench) -> None:
    gateway = bench.gateway
    worker = await FakeWorker(["late"]).start()
    bench.workers.append(worker)
    body = json.dumps({"url": worker.url + "/"}).encode()
    added = await gateway.admin("POST", "/admin/workers", body)
    assert (added.status, added.json) == (201, {"url": worker.url, "added": True})
    again = await gateway.admin("POST", "/admin/workers", body)
    assert (again.status, again.json["added"]) == (200, False)
    await until(lambda: gateway.is_up(worker), "joined")
    assert (await bench.ask(post(completion(model="late")))).status == 200
    for name in (worker.url, worker.id):
        await gateway.join(worker)
        dropped = await gateway.admin("DELETE", f"/admin/workers/{name}")
        assert (dropped.status, dropped.json) == (200, {"removed": name})
        assert await gateway.endpoint(worker) is None
        assert (await bench.ask(post(completion(model="late")))).status == 503
        assert (await bench.ask(request("GET", "/v1/models"))).json["data"] == []
        assert (await gateway.admin("DELETE", f"/admin/workers/{name}")).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b'{"url":3}',
        b'{"url":""}',
        b'{"url":"10.0.0.1:8000"}',
        b'{"url":"ftp://10.0.0.1"}',
        b'{"url":"http://"}',
        b'{"url":"http://h:99999"}',
        b'{"url":"http://user:secret@h"}',
        b'{"url":"http://h/?x=1"}',
        b'{"url":"http://h","extra":1}',
        b'{"url":"\xff"}',
    ],
)
async def test_invalid_workers_are_rejected(bench: Bench, body: bytes) -> None:
    answer = await bench.gateway.admin("POST", "/admin/workers", body)
    assert answer.status == 400
    assert answer.json["error"]["message"]
    assert (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"] == []


@pytest.mark.parametrize(
    "kind", [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"]
)
async def test_a_browser_cannot_add_a_worker(bench: Bench, kind: bytes) -> None:
    body = b'{"url":"http://127.0.0.1:9"}'
    answer = await bench.gateway.admin("POST", "/admin/workers", body, (b"Content-Type", kind))
    assert answer.status == 415
    assert (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"] == []


CANARY = "canary-3f9a"


def loud_tokenizer(directory: Path) -> Path:
    """Worker with a chat template that quotes the prompt in its error, as many do."""
    tokenizer = ROOT / "engines" / "sim" / "tokenizer"
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
        "{{ raise_exception('Unexpected role ' + m.role + ' of ' + m.content) }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    return directory


async def test_no_prompt_and_no_key_is_ever_shown(tmp_path: Path) -> None:
    """Any outcome of a request is covered: answered, rejected, failed, aborted, explained."""
    flags = ("--log-level", "debug", "--log-requests", "--no-tokenizer-probe")
    flags += ("--tokenizer", f"local={loud_tokenizer(tmp_path)}")
    async with running(*flags, "--probe-interval-s", "0.1") as bench:
        answers = [answer_ok, says(wire(400, CANARY.encode())), says(CANARY.encode())]

        async def script(call: Call) -> None:
            await answers[len(bench.workers[0].calls) % len(answers)](call)
            call.close()

        worker = await bench.worker("m", "local", script=script)
        key = (b"Authorization", f"Bearer {CANARY}".encode())
        messages = [{"role": "user", "content": CANARY}, {"role": CANARY, "content": [{"type": CANARY}]}]
        quoted = [{"role": CANARY, "content": CANARY}]
        bodies = [(CHAT, json.dumps({"model": "local", "messages": quoted}).encode())]
        bodies += [
            (
                CHAT,
                json.dumps({"model": model, "messages": messages, "user": CANARY, "stream": True}).encode(),
            )
            for model in ("m", "local", "local")
        ]
        odd = json.dumps({"model": "local", "messages": messages, "tools": CANARY, "chat_template": CANARY})
        bodies += [
            (CHAT, odd.encode()),
            (CHAT, f'{{"model":"m","messages":["{CANARY}"]}}'.encode()),
            (CHAT, f'{{"model":"m","{CANARY}'.encode()),
            ("/v1/completions", completion(CANARY)),
            ("/v1/completions", completion([CANARY, CANARY], model="local")),
            ("/v1/completions", completion(CANARY, cache_salt=CANARY, suffix=CANARY)),
            ("/v1/embeddings", json.dumps({"model": "m", "input": CANARY}).encode()),
            ("/tokenize", json.dumps({"model": "m", "prompt": CANARY}).encode()),
        ]
        for _ in range(3):
            for path, body in bodies:
                client = await bench.client()
                await client.send(post(body, key, target=path))
                with contextlib.suppress(Cut):
                    await client.answer()
        await worker.die()
        for path, body in bodies:
            await (await bench.client()).send(post(body, key, target=path + f"?q={CANARY}"))
        await bench.ask(f"{CANARY} malformed\r\n\r\n".encode())
        await bench.nothing_in_flight()
        gateway = bench.gateway
        pages = ["/metrics", "/admin/workers", "/admin/index", "/admin/decisions", "/ready", "/health"]
        decisions = (await gateway.admin("GET", "/admin/decisions")).json["decisions"]
        assert len(decisions) > 20
        pages += [f"/admin/decisions/{decision}" for decision in decisions]
        for page in pages:
            assert CANARY.encode() not in (await gateway.admin("GET", page)).body, page
    assert CANARY not in "\n".join(bench.gateway.log)
    assert len(bench.gateway.log) > 10
