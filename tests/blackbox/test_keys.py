"""Authentication from outside: keys in a file, added and removed while the gateway runs."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support import token_issuers as issuers
from tests.support.blackbox.bench import running
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
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.real_gateway import Gateway, refusal
from tests.support.blackbox.scripted_worker import says
from tests.support.blackbox.stored_responses import StoringWorker, responses_body
from tests.support.blackbox.strict_client import Answer
from tests.support.patience import until

CANARY = "canary-4711"


def imported(key: str, *arguments: str) -> str:
    """Line of a key that clients already have."""
    command = [*GATEWAY, "key", "import", *arguments]
    return subprocess.run(command, input=key, capture_output=True, text=True, check=True).stdout


def write(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def status_code(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.error["code"] if answer.status >= 400 else None


async def test_a_valid_key_is_served_beside_a_foreign_credential(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    (key, line), (other, other_line) = new_key("--tenant", "acme"), new_key("--tenant", "b")
    file.write_text(line + other_line)
    ours = (b"x-api-key", key.encode())
    async with running("--key-file", str(file)) as bench:
        worker = await bench.worker()
        for foreign in ((b"Authorization", b"Bearer "), bearer(CANARY), bearer("a.b.c"), bearer(key)):
            assert (await bench.ask(post(completion(), foreign, ours))).status == 200
            assert (await bench.ask(post(completion(), ours, foreign))).status == 200
        assert not any(CANARY.encode() in value for call in worker.calls for _, value in call.headers)
        answer = await bench.ask(post(completion(), bearer(other), ours))
        assert status_code(answer) == (403, "ambiguous_credentials") and len(worker.calls) == 8


async def test_a_caller_with_a_key_is_served_and_one_without_gets_401(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "acme", "--models", "m")
    late, late_line = new_key("--tenant", "acme", "--expires", "2020-01-01")
    other, other_line = new_key("--tenant", "b", "--models", "elsewhere")
    file.write_text(line + late_line + other_line)
    async with running("--key-file", str(file), "--log-requests", "--log-level", "debug") as bench:
        worker = await bench.worker()
        for shown in (bearer(key), (b"X-API-Key", key.encode())):
            assert (await bench.ask(post(completion(), shown))).status == 200
        for call in worker.calls:
            assert call.value(b"authorization") is None and call.value(b"x-api-key") is None
        wrong = bearer(CANARY)
        assert status_code(await bench.ask(post(completion()))) == (401, "missing_api_key")
        assert status_code(await bench.ask(post(completion(), wrong))) == (401, "invalid_api_key")
        expired = await bench.ask(post(completion(), bearer(late)))
        assert status_code(expired) == (401, "expired_api_key")
        assert "expired on 2020-01-01T00:00:00Z" in expired.error["message"]
        assert status_code(await bench.ask(post(completion(), bearer(other)))) == (403, "model_not_allowed")
        assert len(worker.calls) == 2
        models = (await bench.ask(request("GET", "/v1/models", None, bearer(other)))).json
        assert models["data"] == []
        offer = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        tunnel = request("GET", "/v1/realtime?model=m", None, *offer)
        assert (await bench.ask(tunnel)).status == 401
        page = (await bench.gateway.admin("GET", "/metrics")).body
        assert b'kvgate_auth_rejections_total{reason="invalid_api_key"} 1.0' in page
        listed = b"".join([(await bench.gateway.admin("GET", "/admin/keys")).body, page])
        log = "\n".join(bench.gateway.log)
        for secret in (key[17:], late[17:], other[17:], CANARY):
            assert secret not in log + listed.decode()


@pytest.mark.parametrize("processes", [1, 2])
async def test_keys_are_reloaded_when_the_file_changes_and_on_sighup(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "keys.jsonl"
    (first, one_line), (second, two_line) = new_key("--tenant", "a"), new_key("--tenant", "b")
    file.write_text(one_line)
    async with running("--key-file", str(file), "--processes", str(processes)) as bench:
        await bench.worker()

        async def are(*statuses: int) -> bool:
            """Statuses of a few requests, so that each process gets some."""
            answers = [
                (await bench.ask(post(completion(), bearer(key)))).status
                for key in (first, second)
                for _ in "1234"
            ]
            return answers == [status for status in statuses for _ in "1234"]

        assert await are(200, 401)
        write(file, two_line)
        await until(lambda: are(401, 200), "the file is followed")
        write(file, one_line + two_line)
        bench.gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: are(200, 200), "it is reloaded on SIGHUP")
        write(file, one_line + '{"id": 5}\n')
        bench.gateway.process.send_signal(signal.SIGHUP)
        num = 1 if processes == 1 else 1 + processes  # the supervisor, too

        def refusals() -> list[str]:
            return [
                line
                for line in bench.gateway.log
                if f"{file}:2: " in line and "keeping the previous keys" in line
            ]

        await until(lambda: len(refusals()) >= num, "all refuse it")
        assert await are(200, 200)
        write(file, one_line)
        await until(lambda: are(200, 401), "it is right again")
        bench.gateway.expected += refusals()


@pytest.mark.parametrize("processes", [1, 2])
async def test_an_imported_key_is_accepted(tmp_path: Path, processes: int) -> None:
    old, file = f"sk-{CANARY}-Zp4q9XvT2mLwK8cRbN7d", tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "b")
    file.write_text(imported(old, "--tenant", "acme", "--models", "m") + line)
    flags = ("--key-file", str(file), "--log-requests", "--processes", str(processes))
    async with running(*flags) as bench:
        await bench.worker("m", "n")
        assert (await bench.ask(post(completion(), bearer(old)))).status == 200
        assert (await bench.ask(post(completion(), bearer(key)))).status == 200
        assert status_code(await bench.ask(post(completion(model="n"), bearer(old))))[0] == 403
        assert status_code(await bench.ask(post(completion(), bearer(old + "x")))) == (401, "invalid_api_key")
        assert not [line for line in bench.gateway.log if CANARY in line]
    assert CANARY not in file.read_text()


async def test_an_unusable_key_file_is_rejected_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text('{"id":"00"}\n')
    for more in ([], ["--processes", "2"]):
        error = await refusal("--key-file", str(file), *more)
        assert f"{file}:1: missing required field `salt`" in error
    assert "cannot be read" in await refusal("--key-file", str(tmp_path / "none"))


@pytest.mark.parametrize("processes", [1, 2])
async def test_admins_need_a_key_where_configured(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "keys.jsonl"
    (plain, plain_line), (root, root_line) = new_key("--tenant", "a"), new_key("--tenant", "ops", "--admin")
    file.write_text(plain_line + root_line)
    flags = ["--key-file", str(file), "--admin-auth", "all", "--processes", str(processes)]
    gateway = await Gateway.start(*flags)
    try:
        admin = gateway.admin
        assert (await admin("GET", "/health")).status == 200
        for path in ("/metrics", "/admin/workers", "/admin/keys"):
            assert (await admin("GET", path)).status == 401
            assert (await admin("GET", path, None, bearer(plain))).status == 403
            assert (await admin("GET", path, None, bearer(root))).status == 200
        kind = (b"Content-Type", b"application/json")
        assert (await admin("POST", "/admin/keys/reload", b"{}", kind)).status == 401
        assert (await admin("POST", "/admin/keys/reload", b"{}", kind, bearer(root))).status == 200
        shown = (await admin("GET", "/admin/keys", None, bearer(root))).json
        assert sorted(each["tenant"] for each in shown["keys"]) == ["a", "ops"]
    finally:
        assert await gateway.stop() == 0
    assert not gateway.faults()


async def test_the_key_is_forwarded_to_the_worker_where_configured(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "a")
    file.write_text(line)
    async with running("--key-file", str(file), "--pass-client-key") as bench:
        worker = await bench.worker()
        assert (await bench.ask(post(completion(), bearer(key)))).status == 200
        assert worker.calls[0].value(b"authorization") == bearer(key)[1]


async def test_workers_get_the_salt_and_scoped_media_of_a_tenant(tmp_path: Path) -> None:
    file, secret = tmp_path / "keys.jsonl", tmp_path / "secret"
    (first, one_line), (second, two_line) = new_key("--tenant", "a"), new_key("--tenant", "b")
    (third, three_line) = new_key("--tenant", "c")
    file.write_text(one_line + two_line + three_line + '{"group":"g","tenants":["b","c"]}\n')
    secret.write_text("s" * 32)
    flags = ["--key-file", str(file), "--tenant-salt-file", str(secret)]
    async with running(*flags) as bench:
        worker = await bench.worker()
        for key in (first, first, second, third):
            medium = {"type": "image_url", "image_url": None, "uuid": "theirs"}
            messages = [{"role": "user", "content": [medium]}]
            body = completion(cache_salt="mine", messages=messages)
            assert (await bench.ask(post(body, bearer(key), target=CHAT))).status == 200
        salts = [json.loads(call.body)["cache_salt"] for call in worker.calls]
        assert salts[0] == salts[1] != salts[2] == salts[3]
        assert "mine" not in salts and all(len(salt) == 43 for salt in salts)
        bodies = [json.loads(call.body) for call in worker.calls]
        uuids = [body["messages"][0]["content"][0]["uuid"] for body in bodies]
        assert uuids[0] == uuids[1] != uuids[2] == uuids[3] and "theirs" not in uuids
        offer = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), bearer(first)]
        assert (await bench.ask(request("GET", "/v1/realtime?model=m", None, *offer))).status == 501


USAGE = b'"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}'
JSON_TYPE = (b"Content-Type", b"application/json")


async def test_cached_tokens_are_hidden_from_clients() -> None:
    async with running("--mask-cached-tokens") as bench:
        whole = b'{"object":"text_completion","choices":[{"text":"hi"}],' + USAGE % 8 + b"}"
        worker = await bench.worker(script=says(wire(200, whole, JSON_TYPE)))
        answer = await bench.ask(post(completion(), (b"Accept-Encoding", b"gzip")))
        assert answer.body == whole.replace(USAGE % 8, USAGE % 0)
        assert answer.value(b"content-length") is None
        assert worker.calls[0].value(b"accept-encoding") is None
        stream = event("hi") + b"data: {" + USAGE % 8 + b',"choices":[]}\n\n' + DONE
        worker.script = says(SSE_HEAD + chunked(stream[:90], stream[90:150], stream[150:]))
        body = completion(stream=True, stream_options={"include_usage": True})
        assert (await bench.ask(post(body))).body == stream.replace(USAGE % 8, USAGE % 0)
        metrics = await bench.gateway.metrics()
        shown = [
            value
            for name, value in metrics.items()
            if name.startswith("kvgate_worker_reported_cached_tokens")
        ]
        assert sum(shown) == 16


async def test_tokens_of_an_issuer_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(issuers.jwks(issuers.public("ec")))
    flags = ["--jwt-keys", str(file), "--jwt-issuer", issuers.ISSUER, "--jwt-audience", issuers.AUDIENCE]
    async with running(*flags) as bench:
        worker = await bench.worker()
        good = issuers.token("ec", models=["m"]).decode()
        assert (await bench.ask(post(completion(), bearer(good)))).status == 200
        assert worker.calls[0].value(b"authorization") is None
        elsewhere = issuers.token("ec", models=["n"]).decode()
        assert status_code(await bench.ask(post(completion(), bearer(elsewhere)))) == (
            403,
            "model_not_allowed",
        )
        unknown = bearer(issuers.token("rsa").decode())
        assert status_code(await bench.ask(post(completion(), unknown))) == (401, "invalid_token")
        file.write_bytes(issuers.jwks(issuers.public("ec"), issuers.public("rsa")))

        async def is_taken() -> bool:
            return (await bench.ask(post(completion(), unknown))).status == 200

        await until(is_taken, "the key it names is fetched")


async def test_stored_responses_of_one_tenant_are_unknown_to_another(tmp_path: Path) -> None:
    keys, secret = tmp_path / "keys.jsonl", tmp_path / "secret"
    (first, one_line), (second, two_line) = new_key("--tenant", "a"), new_key("--tenant", "b")
    keys.write_text(one_line + two_line)
    secret.write_text("s" * 40)
    async with running("--key-file", str(keys), f"KVGATE_RESPONSE_KEY_FILE={secret}") as bench:
        await bench.worker(script=StoringWorker().script)
        kept = await bench.ask(post(responses_body(store=True), bearer(first), target="/v1/responses"))
        assert kept.status == 200
        path = f"/v1/responses/{kept.json['id']}"
        assert (await bench.ask(request("GET", path, None, bearer(first)))).json["id"] == kept.json["id"]
        refused = await bench.ask(request("GET", path, None, bearer(second)))
        assert status_code(refused) == (404, "response_not_found")
        follow = responses_body(store=True, previous_response_id=kept.json["id"])
        refused = await bench.ask(post(follow, bearer(second), target="/v1/responses"))
        assert status_code(refused) == (404, "response_not_found")
