"""A key that is limited to some models reaches no other: whatever the route, and wherever a model is named.

The worker's engine serves `base` and the adapters `ad1` and `ad2`, and takes its base where a request names
no model. The tests check the requests that reached it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.route_table import TABLE
from tests.support import token_issuers as issuers
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import CHAT, COMPLETIONS, Header, post, request
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.limited_keys import (
    CARDS,
    FORM_ROUTES,
    JSON_ROUTES,
    OPENED,
    REFUSED,
    REFUSED_FORMS,
    REST,
    SOUND,
    TAKEN,
    TAKEN_FORMS,
    limited,
)
from tests.support.blackbox.multipart_forms import KIND, form, part
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.blackbox.strict_client import Answer
from tests.support.blackbox.tunnels import AGREED, all_closed, offer
from tests.support.blackbox.websocket_frames import frame, text_frame
from tests.support.patience import until

NAMELESS_ROUTES = tuple(route.path for route in TABLE if not route.names_model)


def param(answer: Answer) -> str:
    return str(answer.error["param"]).casefold()


async def test_bodies_have_the_checked_model(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS)
        for route in JSON_ROUTES:
            for query, named in TAKEN:
                case = route, query, named
                num = len(worker.calls)
                body = ("{" + named + REST + ',"last":0.50}').encode()
                answer = await bench.ask(post(body, key, target=route + query))
                assert (answer.status, len(worker.calls)) == (200, num + 1), case
                pairs = json.loads(worker.calls[num].body, object_pairs_hook=list)
                assert [value for name, value in pairs if name.casefold() == "model"] == ["ad1"], case
                assert b"0.50" in worker.calls[num].body, case
                assert in_query(worker.calls[num]) <= {"ad1"}, case


async def test_bodies_with_another_model_are_rejected(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS)
        for route in JSON_ROUTES:
            for query, named in REFUSED:
                body = ("{" + named + REST + "}").encode()
                answer = await bench.ask(post(body, key, target=route + query))
                assert answer.status in (400, 403), (route, query, named)
                if not route.startswith("/v1/messages"):  # Anthropic's errors have no field
                    assert param(answer) == "model", (route, query, named)
        assert worker.calls == []


def in_query(call: Call) -> set[str]:
    query = call.target.decode().partition("?")[2]
    return {pair.partition("=")[2] for pair in query.split("&") if pair.lower().startswith("model")}


async def test_forms_have_the_checked_model(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS)
        for route in FORM_ROUTES:
            for query, parts in TAKEN_FORMS:
                num = len(worker.calls)
                answer = await bench.ask(
                    post(form(*parts), key, (b"Content-Type", KIND), target=route + query)
                )
                assert (answer.status, len(worker.calls)) == (200, num + 1), (route, query, parts)
                got = worker.calls[num].body
                assert got.count(b'name="model"') == got.count(b"\r\n\r\nad1\r\n") == 1
                assert SOUND in got and got.endswith(b"--xx--\r\n") and in_query(worker.calls[num]) <= {"ad1"}
        worker.calls.clear()
        for route in FORM_ROUTES:
            for query, parts, kind in REFUSED_FORMS:
                target = route + query
                answer = await bench.ask(post(form(*parts), key, (b"Content-Type", kind), target=target))
                assert answer.status in (400, 403, 415), (target, parts)
            body = b'{"model":"ad1","x":"&model=base&y="}'
            for kind in (KIND, b"application/x-www-form-urlencoded"):
                assert (await bench.ask(post(body, key, (b"Content-Type", kind), target=route))).status == 400
        assert worker.calls == []


async def test_a_route_without_a_model_is_answered_from_the_base(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "base")
    other, _ = limited(tmp_path, "ad1")
    keys = tmp_path / "keys.jsonl"
    first, second = new_key("--tenant", "a", "--models", "base"), new_key("--tenant", "b", "--models", "ad1")
    keys.write_text(first[1] + second[1])
    key, other = bearer(first[0]), bearer(second[0])
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS)
        for route in NAMELESS_ROUTES:
            assert (await bench.ask(post(b'{"text":"x"}', key, target=route))).status == 200
            assert json.loads(worker.calls.pop().body) == {"text": "x", "model": "base"}
            named = b'{"text":"x","lora_path":"ad1"}'
            assert (await bench.ask(post(named, key, target=route))).status == 403
            assert (await bench.ask(post(named, other, target=route))).status == 200
            assert json.loads(worker.calls.pop().body)["lora_path"] == "ad1"
            for body in (b'{"text":"x"}', b'{"text":"x","model":"ad1"}', named):
                for query in ("", "?model=ad1"):
                    if body is not named or query:
                        answer = await bench.ask(post(body, other, target=route + query))
                        assert answer.status in (400, 403), (route, query, body)
        empty = await bench.ask(post(b"", key, target=OPENED))
        assert empty.status == 200 and worker.calls.pop().body == b""
        assert (await bench.ask(post(b"", other, target=OPENED + "?model=base"))).status == 403
        assert worker.calls == []


async def test_an_alias_is_replaced_by_the_name_at_the_worker(tmp_path: Path) -> None:
    config = tmp_path / "kvgate.toml"
    config.write_text('[models."org/name"]\naliases = ["fast"]\n')
    key, flags = limited(tmp_path, "fast")
    async with running("--config", str(config), *flags) as bench:
        worker = await bench.worker({"id": "served", "root": "org/name"})
        assert (
            await bench.ask(post(b'{"prompt":"x"}', key, target=COMPLETIONS + "?model=fast"))
        ).status == 200
        call = worker.calls.pop()
        assert (json.loads(call.body)["model"], in_query(call)) == ("served", {"served"})
        kind = b"Content-Type", KIND
        for query, body in (("?model=fast", form(SOUND)), ("", form(part("model", b"fast"), SOUND))):
            assert (await bench.ask(post(body, key, kind, target=FORM_ROUTES[0] + query))).status == 200
            assert worker.calls.pop().body == form(part("model", b"served"), SOUND)


# fields and headers ------------------------------------------------------------------------------


STEERING = {
    "ec_transfer_params": {"peer": "10.0.0.9"},
    "encoder_urls": ["http://10.0.0.9"],
    "prompt_token_ids": [1],
    "disagg_prefill_dp_rank": 1,
    "routed_dp_rank": 1,
    "data_parallel_rank": 1,
    "lora_id": "1",
    "custom_logit_processor": "{}",
    "session_params": {"id": "s"},
    "http_worker_ipc": "ipc:///tmp/x",
    "kv_hints": {},
    "mm_hashes": ["x"],
}


async def test_steering_fields_are_removed() -> None:
    async with running() as bench:
        worker = await bench.worker()
        for route in (CHAT, COMPLETIONS, "/v1/embeddings", "/v1/responses", "/v1/messages"):
            kept = {"model": "m", "messages": [{"role": "user"}], "prompt": "x", "last": [1]}
            for extra in (STEERING, {"vllm_xargs": {**STEERING, "mine": 1}}):
                body = json.dumps({**kept, **extra}).encode()
                assert (await bench.ask(post(body, target=route))).status == 200
                got = json.loads(worker.calls.pop().body)
                assert got.pop("vllm_xargs", {"mine": 1}) == {"mine": 1}
                assert got == kept, route
            for name in ("Ec_Transfer_Params", "Bootstrap_Host", "LORA_PATH", "\u212av_hints", "Model"):
                body = json.dumps({**kept, name: "x"}, ensure_ascii=False).encode()
                answer = await bench.ask(post(body, target=route))
                assert answer.status == 400 and name in answer.body.decode(), (route, name)
        assert worker.calls == []


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, "/v1/embeddings", "/v1/messages"])
async def test_adapters_beside_the_model_are_checked_against_the_key(tmp_path: Path, route: str) -> None:
    key, flags = limited(tmp_path, "base", "ad1")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS)

        async def ask(field: str, value: object) -> int:
            body = {"model": "base", "messages": [{"role": "user"}], "prompt": "x", field: value}
            return (await bench.ask(post(json.dumps(body).encode(), key, target=route))).status

        for value, model in (("ad1", "ad1"), (None, "base")):
            assert await ask("lora_path", value) == 200
            body = json.loads(worker.calls.pop().body)
            assert (body["model"], "lora_path" in body) == (model, False)
        for value in (["ad1", "base"], ["ad1", "ad2"], ["ad1", None], {"x": "ad1"}):
            assert await ask("lora_path", value) == 400, value
        for value in ("ad2", "", "/1"):
            assert await ask("lora_path", value) == 403, value
        for field in ("lora_request", "adapters", "draft_model", "lora", "adapter_id"):
            assert await ask(field, {"lora_name": "ad1", "lora_path": "/2"}) == 403, field
        assert await ask("vllm_xargs", {"lora_path": "ad2"}) == 403
        assert worker.calls == []


HEADERS = (
    b"X-Data-Parallel-Rank",
    b"X-Vllm-Priority",
    b"x-override-bootstrap-host",
    b"X-Override-Routed-Dp-Rank",
    b"x-override-priority",
    b"x-override-rid",
    b"X-Body-Compressed",
    b"x-prefiller-host-port",
    b"X-SMG-Target-Worker",
)


async def test_steering_headers_are_removed() -> None:
    async with running() as bench:
        worker = await bench.worker()
        headers = [(name, b"1") for name in (*HEADERS, b"X-Mine", b"X-Session-Id")]
        assert (await bench.ask(post(b'{"model":"m","prompt":"x"}', *headers))).status == 200
        names = {name.lower() for name, _ in worker.calls[0].headers}
        assert not names & {name.lower() for name in HEADERS}
        assert {b"x-mine", b"x-session-id"} <= names


async def test_a_priority_in_a_body_is_no_higher_than_the_admitted_one() -> None:
    async with running() as bench:
        worker = await bench.worker()
        for given, goes_on in ((-5, 0), (0, 0), (7, 7), ("-5", 0), (-5.0, 0)):
            body = json.dumps({"model": "m", "prompt": "x", "priority": given}).encode()
            assert (await bench.ask(post(body))).status == 200
            assert json.loads(worker.calls.pop().body)["priority"] == goes_on


# WebSockets --------------------------------------------------------------------------------------


async def agrees(call: Call) -> None:
    await call.send(AGREED)
    await call.gone.wait()


def received(worker: FakeWorker) -> Iterator[bytes]:
    for call in worker.calls:
        yield bytes(call.link._buffer)


async def talk(bench: Bench, worker: FakeWorker, key: Header, *sent: bytes) -> bytes | None:
    """Final error of the gateway; None where all data arrives."""
    worker.calls.clear()
    client = await bench.client()
    await client.send(
        offer("/v1/realtime?model=base", key, (b"Sec-WebSocket-Extensions", b"permessage-deflate"))
    )
    await client.switched()
    for data in sent:
        await client.send(data)
    whole = b"".join(sent)
    call = await worker.called()
    closed = bytearray()

    async def is_over() -> bool:
        return call.link.num_waiting() >= len(whole) or call.gone.is_set()

    await until(is_over, "it arrives or is refused")
    if call.gone.is_set():
        closed += await client.exactly(4)
        size = closed[1]
        closed += await client.exactly(size - 2)
        await client.ends()
        return bytes(closed)
    await client.close()
    return None


async def test_messages_of_a_websocket_with_another_model_are_rejected(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "base")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS, script=agrees)
        update = text_frame(type="session.update", model="base")
        sound = text_frame(type="input_audio_buffer.append", audio="UklGRg" * 20_000)
        assert await talk(bench, worker, key, update, sound, frame(b"", 9)) is None
        assert worker.calls[0].value(b"sec-websocket-extensions") is None
        assert in_query(worker.calls[0]) == {"base"}
        other = json.dumps({"type": "session.update", "model": "ad1"}).encode()
        for refused in (
            [frame(other)],
            [frame(other[:9], is_last=False), frame(b"", 9), frame(other[9:], 0)],
            [update, frame(other[:-1] + b',"model":"base"}')],
            [frame(other.replace(b"model", b"mod\\u0065l"))],
            [text_frame(session={"audio": {"input": {"transcription": {"model": "ad2"}}}})],
            [text_frame(type="session.update", model="")],
        ):
            closed = await talk(bench, worker, key, *refused)
            assert closed is not None and closed[:1] == b"\x88", refused
            assert int.from_bytes(closed[2:4], "big") == 1008
            assert not any(b"ad" in data for data in received(worker))
        for data, code in (
            (frame(b"{}", rsv=0x40), 1002),
            (b"\x81\x02{}", 1002),
            (b"\x81\xff" + b"\0\0\0\1" * 2 + b"1234", 1009),
        ):
            closed = await talk(bench, worker, key, data)
            assert closed is not None and int.from_bytes(closed[2:4], "big") == code
        await all_closed(bench)


async def test_an_adapter_is_no_model_of_a_websocket(tmp_path: Path) -> None:
    """Engines answer it from their base."""
    key, flags = limited(tmp_path, "ad1")
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS, script=agrees)
        for target, status in (
            ("/v1/realtime?model=ad1", 400),
            ("/v1/realtime?model=base", 403),
            ("/v1/realtime?model=ad1&model=base", 400),
            ("/v1/realtime?Model=ad1", 400),
            ("/v1/realtime", 403),
        ):
            assert (await bench.ask(offer(target, key))).status == status, target
        assert worker.calls == []


async def test_messages_of_unlimited_keys_pass_unchanged(tmp_path: Path) -> None:
    key, flags = limited(tmp_path)
    async with running(*flags) as bench:
        worker = await bench.worker(*CARDS, script=agrees)
        raw = text_frame(model="ad1") + frame(b"\xff\0", 2, rsv=0x40)
        assert await talk(bench, worker, key, raw) is None
        assert worker.calls[0].value(b"sec-websocket-extensions") == b"permessage-deflate"
        assert next(received(worker)) == raw


# keys without a limit ----------------------------------------------------------------------------


async def test_a_token_with_an_empty_or_misspelt_list_of_models_is_rejected(tmp_path: Path) -> None:
    jwks = tmp_path / "jwks.json"
    jwks.write_bytes(issuers.jwks(issuers.public("ec")))
    flags = ["--jwt-keys", str(jwks), "--jwt-issuer", issuers.ISSUER, "--jwt-audience", issuers.AUDIENCE]
    async with running(*flags) as bench:
        await bench.worker()
        body = b'{"model":"m","prompt":"x"}'
        for models in (issuers.NULL, [], "", {}, [None], False):
            token = bearer(issuers.token("ec", models=models).decode())
            answer = await bench.ask(post(body, token))
            assert (answer.status, answer.error["code"]) == (401, "invalid_token"), models
        for name in ("Models", "MODELS", "model", "Tenant"):
            token = bearer(issuers.token("ec", **{name: ["other"]}).decode())
            answer = await bench.ask(post(body, token))
            assert (answer.status, answer.error["code"]) == (401, "invalid_token"), name
        assert (await bench.ask(post(body, bearer(issuers.token("ec").decode())))).status == 200


async def test_a_limited_key_lists_its_models_only(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    async with running(*flags) as bench:
        await bench.worker(*CARDS)
        listed = (await bench.ask(request("GET", "/v1/models", None, key))).json["data"]
        assert [each["id"] for each in listed] == ["ad1"]
        for name, status in (("ad1", 200), ("base", 404), ("%61d2", 404), ("Ad1", 404)):
            assert (await bench.ask(request("GET", f"/v1/models/{name}", None, key))).status == status
