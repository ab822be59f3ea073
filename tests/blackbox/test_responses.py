"""Responses stored by workers: found at the worker that made them, by any gateway, and nowhere else."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.blackbox.bench import Bench, lasting, visiting
from tests.support.blackbox.http1_bytes import post, request, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.stored_responses import RESPONSES, StoringWorker, responses_body
from tests.support.patience import until


async def keepers(bench: Bench, num: int = 3) -> tuple[list[StoringWorker], list[FakeWorker]]:
    some = [StoringWorker() for _ in range(num)]
    return some, [await bench.worker(script=credentials.script) for credentials in some]


def own_of(given: str) -> str:
    assert given.startswith("resp_kv_")
    return "resp_" + given[20:]


async def test_a_stored_response_is_found_at_its_worker(bench: Bench) -> None:
    some, workers = await keepers(bench)
    for _ in range(6):
        made = (await bench.ask(post(responses_body(store=True), target=RESPONSES))).json
        at = next(i for i, credentials in enumerate(some) if own_of(made["id"]) in credentials.kept)
        for ask in (
            request("GET", f"{RESPONSES}/{made['id']}?include=x"),
            request("DELETE", f"{RESPONSES}/{made['id']}"),
            request("POST", f"{RESPONSES}/{made['id']}/cancel"),
        ):
            before = [len(worker.calls) for worker in workers]
            answer = await bench.ask(ask)
            assert (answer.status, answer.json["id"]) == (200, made["id"])
            after = [len(worker.calls) for worker in workers]
            assert [b - a for a, b in zip(before, after, strict=True)] == [int(i == at) for i in range(3)]
        last = workers[at].calls[-1]
        assert last.target == f"{RESPONSES}/{own_of(made['id'])}/cancel".encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_continues_at_the_worker_of_the_previous_one(bench: Bench, stream: bool) -> None:
    some, workers = await keepers(bench)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json
    at = next(i for i, credentials in enumerate(some) if own_of(made["id"]) in credentials.kept)
    for _ in range(4):
        sent = responses_body(previous_response_id=made["id"], stream=stream)
        answer = await bench.ask(post(sent, target=RESPONSES))
        assert answer.status == 200
        assert json.loads(workers[at].calls[-1].body)["previous_response_id"] == own_of(made["id"])
        lines = [line[6:] for line in answer.body.splitlines() if line.startswith(b"data: ")]
        next_ = json.loads(lines[-1])["response"] if stream else answer.json
        assert next_["previous_response_id"] == made["id"]
        assert own_of(next_["id"]) == some[at].kept[-1]
        if stream:
            assert json.loads(lines[0])["response"]["id"] == next_["id"]
            assert json.loads(lines[1])["delta"] == some[at].kept[-1]  # generated text is unchanged
        made = next_


async def test_a_long_answer_is_renamed_piece_by_piece(bench: Bench) -> None:
    text = json.dumps({"text": '"id":"resp_7", ' * 100})

    async def script(call: Call) -> None:
        previous = json.loads(call.body).get("previous_response_id")
        ends = f'"previous_response_id": {json.dumps(previous)}}}'
        data = f'{{"id":"resp_7","object":"response","output":[{",".join([text] * 1500)}],{ends}'.encode()
        assert len(data) > 2 << 20
        await call.send(wire(200, data))

    await bench.worker(script=script)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json
    assert own_of(made["id"]) == "resp_7" and len(made["output"]) == 1500
    answer = (await bench.ask(post(responses_body(previous_response_id=made["id"]), target=RESPONSES))).json
    assert answer["previous_response_id"] == made["id"] == answer["id"]
    assert answer["output"] == made["output"] == [json.loads(text)] * 1500


async def test_a_not_found_error_of_the_worker_names_the_id_of_the_client(bench: Bench) -> None:
    some, _ = await keepers(bench, 1)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json
    some[0].kept.clear()
    for ask in (
        request("GET", f"{RESPONSES}/{made['id']}"),
        post(responses_body(previous_response_id=made["id"]), target=RESPONSES),
    ):
        answer = await bench.ask(ask)
        assert answer.status == 404
        assert answer.json["error"]["message"] == f"Response with id '{made['id']}' not found."


async def test_unknown_ids_and_those_of_dropped_workers_are_not_found(bench: Bench) -> None:
    _, workers = await keepers(bench, 2)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json["id"]
    left = next(worker for worker in workers if worker.calls)
    await bench.gateway.drop(left)
    for given, why in ((made, "is not available"), ("resp_1", "is unknown")):
        for ask in (
            request("GET", f"{RESPONSES}/{given}"),
            request("POST", f"{RESPONSES}/{given}/cancel"),
            post(responses_body(previous_response_id=given), target=RESPONSES),
        ):
            answer = await bench.ask(ask)
            assert (answer.status, answer.error["code"]) == (404, "response_not_found")
            assert why in answer.error["message"]
            assert answer.value(b"x-should-retry") == b"false"
    assert sum(len(worker.calls) for worker in workers) == 1


async def test_a_worker_that_is_down_is_waited_for_and_no_other_is_asked(bench: Bench) -> None:
    _, workers = await keepers(bench, 2)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json["id"]
    maker, other = sorted(workers, key=lambda worker: -len(worker.calls))
    await maker.die()
    for _ in range(2):  # a failed request, then a worker known to be down
        answer = await bench.ask(request("GET", f"{RESPONSES}/{made}"))
        assert answer.status in (502, 503)
        assert answer.value(b"retry-after")
    assert not other.calls
    await maker.start()
    await bench.gateway.join(maker)


async def test_the_worker_of_another_model_is_not_asked(bench: Bench) -> None:
    _, _ = await keepers(bench, 1)
    await bench.worker("other")
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json["id"]
    sent = responses_body(previous_response_id=made).replace(b'"m"', b'"other"')
    answer = await bench.ask(post(sent, target=RESPONSES))
    assert (answer.status, answer.error["param"]) == (404, "previous_response_id")
    wrong = await bench.ask(post(responses_body(previous_response_id=7), target=RESPONSES))
    assert wrong.status == 400


@pytest.mark.parametrize("flags", [[], ["--processes", "2"]], ids=["another gateway", "two processes"])
async def test_any_gateway_finds_a_stored_response(bench: Bench, flags: list[str]) -> None:
    some, workers = await keepers(bench, 3)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json["id"]
    named = [flag for worker in workers for flag in ("--worker", worker.url)]
    async with lasting("--probe-interval-s", "0.2", *named, *flags) as gateway, visiting(gateway) as there:
        for worker in workers:
            await until(partial(gateway.is_up, worker), "a worker is up")
        for _ in range(4):
            answer = await there.ask(request("GET", f"{RESPONSES}/{made}"))
            assert (answer.status, answer.json["id"]) == (200, made)


async def test_ids_with_a_key_are_found_with_that_key_only(bench: Bench, tmp_path: Path) -> None:
    _, workers = await keepers(bench, 1)
    made = (await bench.ask(post(responses_body(), target=RESPONSES))).json["id"]
    key = tmp_path / "key"
    key.write_text("secret\n")
    flags = ("--worker", workers[0].url, f"KVGATE_RESPONSE_KEY_FILE={key}")
    async with lasting(*flags) as gateway, visiting(gateway) as there:
        await until(partial(gateway.is_up, workers[0]), "the worker is up")
        assert (await there.ask(request("GET", f"{RESPONSES}/{made}"))).status == 404
        own = (await there.ask(post(responses_body(), target=RESPONSES))).json["id"]
        assert (await there.ask(request("GET", f"{RESPONSES}/{own}"))).status == 200
