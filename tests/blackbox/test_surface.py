"""The OpenAI surface: each request reaches its worker, unchanged."""

import json

import pytest

from tests.support.blackbox.bench import Bench
from tests.support.blackbox.http1_bytes import (
    CHAT,
    COMPLETIONS,
    DONE,
    SSE_HEAD,
    chunked,
    completion,
    event,
    post,
    request,
    wire,
)
from tests.support.blackbox.scripted_worker import Call

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "prompt", ["one text", ["two", "texts"], [1, 2, 3], [[1, 2, 3], [4, 5]]], ids=lambda p: json.dumps(p)
)
@pytest.mark.parametrize("stream", [False, True])
async def test_completions_in_all_prompt_forms_are_forwarded(
    bench: Bench, prompt: object, stream: bool
) -> None:
    sent = [event("a"), event("b"), DONE]
    reply = SSE_HEAD + chunked(*sent) if stream else wire(200, b'{"choices":[]}')

    async def script(call: Call) -> None:
        await call.send(reply)

    worker = await bench.worker(script=script)
    body = completion(prompt, stream=stream)
    answer = await bench.ask(post(body))
    assert answer.status == 200
    assert answer.body == (b"".join(sent) if stream else b'{"choices":[]}')
    call = worker.calls[0]
    assert (call.method, call.target, call.wish) == (b"POST", COMPLETIONS.encode(), body)


ODD_BODY = (
    b'{ "model" :"m","messages":[{"role":"user","content":"\\u00e9 \xc3\xa9 \\/"}],'
    b'"prompt":"x", "temperature":0.70, "new_field":{"z":1,"a":[1e3,-0.0]},\n\t"n":1 }\n'
)
ROUTES = [
    CHAT,
    COMPLETIONS,
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/audio/transcriptions",
    "/pooling",
    "/classify",
    "/generate",
]


@pytest.mark.parametrize("route", ROUTES)
async def test_bodies_and_answers_pass_byte_for_byte(bench: Bench, route: str) -> None:
    reply = b'{"b" : 1,\n "a":"\\u00e9","usage":{"prompt_tokens":"many"}} trailing\x00\xff'
    worker = await bench.worker(script=lambda call: call.send(wire(200, reply)))
    answer = await bench.ask(post(ODD_BODY, target=route))
    assert (answer.status, answer.body) == (200, reply)
    assert (worker.calls[0].target, worker.calls[0].body) == (route.encode(), ODD_BODY)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_model_is_routed_to_its_worker(bench: Bench, route: str) -> None:
    first, second = await bench.worker("m"), await bench.worker("other")
    client = await bench.client()
    for _ in range(3):
        answer = await client.ask(post(ODD_BODY.replace(b'"m"', b'"other"'), target=route))
        assert answer.status == 200
    assert (len(first.calls), len(second.calls)) == (0, 3)


CONTROL = ["/reset_prefix_cache", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
           "/collective_rpc", "/pause", "/update_weights", "/flush_cache"]  # fmt: skip


@pytest.mark.parametrize("path", CONTROL)
async def test_routes_that_control_an_engine_are_rejected(bench: Bench, path: str) -> None:
    worker = await bench.worker()
    for method in ("GET", "POST"):
        answer = await bench.ask(request(method, path, completion() if method == "POST" else None))
        assert answer.status == 403
        assert answer.error["code"] == "route_forbidden"
        assert "not open to clients" in answer.error["message"]
    assert not worker.calls


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n--a\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\r\n--b--\r\n'
)


async def test_forms_are_routed_by_model_and_pass_unchanged(bench: Bench) -> None:
    first, second = await bench.worker("m"), await bench.worker("other")
    kind = (b"Content-Type", b"multipart/form-data; boundary=b")
    for route in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        assert (await bench.ask(post(FORM, kind, target=route))).status == 200
        assert second.calls[-1].body == FORM
    assert not first.calls
    assert (await bench.ask(post(FORM, target="/v1/audio/translations"))).status == 400


async def test_a_model_may_be_named_in_the_query(bench: Bench) -> None:
    first, second = await bench.worker("m"), await bench.worker("other")
    assert (await bench.ask(post(b'{"text":"x"}', target="/generate?model=other"))).status == 200
    assert (len(first.calls), second.calls[0].target) == (0, b"/generate?model=other")
    missing = await bench.ask(post(b'{"text":"x"}', target="/generate"))
    assert missing.status == 400
    assert "?model=NAME, one of m, other" in missing.error["message"]


async def test_a_fleet_of_one_model_needs_no_model_in_the_request(bench: Bench) -> None:
    worker = await bench.worker("m")
    assert (await bench.ask(post(b'{"text":"x"}', target="/generate"))).status == 200
    assert worker.calls[0].body == b'{"text":"x"}'


async def test_the_query_is_forwarded(bench: Bench) -> None:
    worker = await bench.worker()
    assert (await bench.ask(post(completion(), target=COMPLETIONS + "?api-version=1&x=%20y"))).status == 200
    assert worker.calls[0].target == b"/v1/completions?api-version=1&x=%20y"


async def test_models_of_all_workers_are_listed(bench: Bench) -> None:
    weights, tuned = {"id": "m", "root": "/weights"}, {"id": "tuned", "root": "/tuned", "parent": "m"}
    await bench.worker(weights, "org/name", tuned)
    await bench.worker("m", {"id": "other", "max_model_len": 4096})
    client = await bench.client()
    answer = await client.ask(request("GET", "/v1/models"))
    assert answer.json["object"] == "list"
    cards = {card["id"]: card for card in answer.json["data"]}
    assert list(cards) == ["m", "org/name", "other", "tuned"]
    assert all(card["object"] == "model" for card in cards.values())
    assert cards["tuned"]["parent"] == "m"
    assert cards["other"]["max_model_len"] == 4096
    for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
        assert (await client.ask(request("GET", path))).json["id"] == "org/name"
    missing = await client.ask(request("GET", "/v1/models/org"))
    assert missing.status == 404
    assert missing.error["code"] == "model_not_found"


STEERING = [
    '"kv_transfer_params":{"remote_host":"10.0.0.9","remote_port":1}',
    '"kv\\u005ftransfer\\u005fparams":{"do_remote_prefill":true}',
    '"kv_transfer_params":null,"kv_transfer_params":{"remote_host":"10.0.0.9"}',
    '"kv_transfer_params":{"remote_host":"10.0.0.9"},"kv\\u005ftransfer_params":null',
    '"bootstrap_host":"10.0.0.9"',
    '"bootstrap_port":8998',
    '"bootstrap_room":[1,2]',
    '"bootstrap\\u005froom":7',
    '"disaggregated_params":{"request_type":"context_only"}',
    '"kv_cache_report_mode":"full"',
    '"vllm_xargs":{"kv_cache_report_mode":"full"}',
    '"vllm_xargs":{"kv_transfer_params":{"a":1},"bootstrap_host":"x"}',
    '"vllm\\u005fxargs":{"kv\\u005fcache_report_mode":"full"}',
    '"vllm_xargs":{},"vllm_xargs":{"kv_cache_report_mode":"full"}',
    '"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":{}',
]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, "/v1/responses"])
@pytest.mark.parametrize("steering", STEERING)
async def test_clients_cannot_steer_engines(bench: Bench, route: str, steering: str) -> None:
    worker = await bench.worker()
    kept = '"model":"m","messages":[{"role":"user"}],"prompt":"x","temperature":0.50'
    body = "{" + kept + "," + steering + ',"last":[1, 2]}'
    assert (await bench.ask(post(body.encode(), target=route))).status == 200
    forwarded = json.loads(worker.calls[0].body)  # where names repeat the last counts, as in engines
    names = [*forwarded, *forwarded.get("vllm_xargs", {})]
    assert not [n for n in names if n.startswith(("kv_", "bootstrap_", "disaggregated"))], worker.calls[
        0
    ].body
    forwarded.pop("vllm_xargs", None)
    assert forwarded == {**json.loads("{" + kept + "}"), "last": [1, 2]}
    assert b"0.50" in worker.calls[0].body
    assert worker.calls[0].value(b"content-length") == b"%d" % len(worker.calls[0].body)


async def test_an_error_of_the_engine_passes_unchanged(bench: Bench) -> None:
    reply = b'{"object":"error","message":"prompt is too long","type":"BadRequestError","code":400}'
    head = (b"Content-Type", b"application/json"), (b"X-Engine", b"1")
    worker = await bench.worker(script=lambda call: call.send(wire(400, reply, *head)))
    answer = await bench.ask(post(completion()))
    assert (answer.status, answer.body, answer.value(b"x-engine")) == (400, reply, b"1")
    assert len(worker.calls) == 1
