"""A key that is limited to models reaches no other one through the picker's port, by ext_proc or by Decide.

The cases are those of the port for clients. Here the gateway names the worker and writes the body that its
caller sends there.
"""

import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.decide.services import DECIDE, REPORT
from gateway.epp.messages import BodyMode
from gateway.proto.kvgate.v1 import decide_pb2
from loadtest.ports import free_port
from tests.support.blackbox.bench import running
from tests.support.blackbox.envoy_streams import EnvoyStreams
from tests.support.blackbox.limited_keys import (
    CARDS,
    FORM_ROUTES,
    JSON_ROUTES,
    REFUSED,
    REFUSED_FORMS,
    REST,
    TAKEN,
    TAKEN_FORMS,
    limited,
)
from tests.support.blackbox.multipart_forms import KIND, form
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.ext_proc import BUFFERED, DUPLEX

pytestmark = pytest.mark.interpreted


def models_of(body: bytes) -> list[object]:
    pairs = json.loads(body, object_pairs_hook=list)
    return [value for name, value in pairs if name.casefold() == "model"]


@pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
async def test_a_limited_key_reaches_its_model_only(tmp_path: Path, mode: BodyMode) -> None:
    key, flags = limited(tmp_path, "ad1")
    port = free_port()
    async with running(*flags, "--epp-port", str(port)) as bench:
        worker = await bench.worker(*CARDS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            envoy = EnvoyStreams(channel, (key[0].lower(), key[1]))
            for route in JSON_ROUTES:
                for query, named in TAKEN:
                    body = ("{" + named + REST + "}").encode()
                    status, picked, got, path = await envoy.ask(route + query, body, mode=mode)
                    assert (status, picked) == (0, worker.id), (route, query, named)
                    assert models_of(got) == ["ad1"], (route, query, named, got)
                    assert "base" not in path and "ad2" not in path
                for query, named in REFUSED:
                    body = ("{" + named + REST + "}").encode()
                    status, picked, _, _ = await envoy.ask(route + query, body, mode=mode)
                    assert status in (400, 403) and not picked, (route, query, named)


async def test_a_form_of_a_limited_key_has_the_checked_model(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    port = free_port()
    async with running(*flags, "--epp-port", str(port)) as bench:
        worker: FakeWorker = await bench.worker(*CARDS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            envoy = EnvoyStreams(channel, (key[0].lower(), key[1]))
            for route in FORM_ROUTES:
                for query, parts in TAKEN_FORMS:
                    status, picked, got, _ = await envoy.ask(route + query, form(*parts), KIND)
                    assert (status, picked) == (0, worker.id), (route, query, parts)
                    assert got.count(b'name="model"') == got.count(b"\r\n\r\nad1\r\n") == 1
                for query, parts, kind in REFUSED_FORMS:
                    status, picked, _, _ = await envoy.ask(route + query, form(*parts), kind)
                    assert status in (400, 403, 415) and not picked, (route, query, parts)


async def test_decisions_for_a_limited_key_are_for_its_model_only(tmp_path: Path) -> None:
    key, flags = limited(tmp_path, "ad1")
    port = free_port()
    async with running(*flags, "--epp-port", str(port)) as bench:
        worker = await bench.worker(*CARDS)
        shown = decide_pb2.HttpField(name=key[0].decode(), value=key[1])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def decide(**fields: Any) -> decide_pb2.DecideReply:
                """A decision, reported as finished."""
                asked: Any = decide_pb2.DecideRequest(headers=[shown], **fields)
                answer = await channel.unary_unary(DECIDE.decode())(
                    asked.SerializeToString(), timeout=DEADLINE_S
                )
                reply = decide_pb2.DecideReply.FromString(answer)
                if reply.HasField("decided"):
                    decision_id, finished = reply.decided.decision_id, decide_pb2.Finished()
                    report: Any = decide_pb2.ReportRequest(decision_id=decision_id, finished=finished)
                    await channel.unary_unary(REPORT.decode())(report.SerializeToString(), timeout=DEADLINE_S)
                return reply

            for route in JSON_ROUTES:
                for query, named in TAKEN:
                    body = ("{" + named + REST + "}").encode()
                    made = (await decide(path=route + query, body=body)).decided
                    assert made.target.worker == worker.id, (route, query, named)
                    assert models_of(made.body or body) == ["ad1"], (route, query, named)
                for query, named in REFUSED:
                    body = ("{" + named + REST + "}").encode()
                    reply = await decide(path=route + query, body=body)
                    assert reply.rejected.status in (400, 403), (route, query, named)
            assert (await decide(token_ids=[1, 2, 3], model="ad1")).decided.target.worker == worker.id
            for model in ("", "base", "ad2"):
                assert (await decide(token_ids=[1, 2, 3], model=model)).rejected.status in (400, 403)
