"""Admin API of several processes, which the test plays."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.core.errors import ConfigError
from gateway.processes.admin import AdminReply, AdminRequest, Aggregate

pytestmark = pytest.mark.process

PAGE = """\
# HELP kvgate_responses_total Answers
# TYPE kvgate_responses_total counter
kvgate_responses_total{code="200"} %d
# HELP kvgate_client_connections Open
# TYPE kvgate_client_connections gauge
kvgate_client_connections 1.0
"""


class FakeProcess:
    """Process with scripted answers; None is no answer."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.num_restarts = row
        self.has_begun = True
        self.answers: dict[str, Any] = {}
        self.asked: list[AdminRequest] = []

    async def ask(self, question: AdminRequest) -> AdminReply:
        self.asked.append(question)
        target = question.target
        answer = self.answers.get(target, (404, {"error": {"message": f"no {target}"}}))
        if answer is None:
            raise ConnectionError("its answer was cut")
        if isinstance(answer, str):
            return AdminReply(200, "text/plain", answer.encode())
        status, value = answer
        return AdminReply(status, "application/json", msgspec.json.encode(value))


class Host:
    def __init__(self) -> None:
        self.processes = [FakeProcess(0), FakeProcess(1)]
        self.is_stopping = False
        self.num_changes = 0
        self.aggregate = Aggregate(
            lambda: self.processes, lambda: self.is_stopping, self._changed, self._reload, self._config
        )
        self.refusal: str | None = None
        self.reloaded = AdminReply(200, "application/json", b'{"policy":"p"}')
        self.client = TestClient(TestServer(self.aggregate.app()))

    async def _config(self) -> dict[str, int]:
        if self.refusal:
            raise ConfigError(self.refusal)
        return {"generation": 2}

    async def _changed(self) -> None:
        self.num_changes += 1

    async def _reload(self) -> AdminReply:
        return self.reloaded

    def answer(self, target: str, *answers: Any) -> None:
        for process, answer in zip(self.processes, answers, strict=True):
            process.answers[target] = answer

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.client.get(path)
        assert answer.status == status
        return await answer.json()

    async def metric(self, name: str) -> float | None:
        page = await (await self.client.get("/metrics")).text()
        lines = (line.rpartition(" ") for line in page.splitlines())
        return next((float(value) for sample, _, value in lines if sample == name), None)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    async with host.client:
        yield host


async def test_health_is_answered_without_the_processes(host: Host) -> None:
    assert await host.get("/health") == {"status": "alive"}
    assert [process.asked for process in host.processes] == [[], []]


async def test_the_gateway_is_ready_if_one_process_is(host: Host) -> None:
    no = 503, {"error": {"message": "no worker is up"}}
    host.answer("/ready?model=m", no, (200, {"status": "ready"}))
    assert await host.get("/ready?model=m") == {"status": "ready"}
    host.answer("/ready", no, no)
    assert (await host.get("/ready", 503))["error"]["message"] == "no worker is up"
    host.is_stopping = True
    assert (await host.get("/ready?model=m", 503))["error"]["message"] == "the gateway is stopping"
    host.is_stopping, host.processes = False, []
    assert (await host.get("/ready", 503))["error"]["message"] == "no process is ready"


RESPONSES = 'kvgate_responses_total{code="200"}'


async def test_metrics_are_summed_and_include_the_processes(host: Host) -> None:
    host.answer("/metrics", PAGE % 3, PAGE % 4)
    assert await host.metric(RESPONSES) == 7
    assert await host.metric("kvgate_client_connections") == 2
    assert await host.metric("kvgate_processes") == 2
    assert await host.metric('kvgate_process_restarts_total{process="1"}') == 1
    assert await host.metric('kvgate_process_responses_total{process="1"}') == 4
    assert (await host.metric("process_resident_memory_bytes") or 0) > 1e6, "the supervisor's own"


async def test_counts_of_a_dead_process_are_kept(host: Host) -> None:
    host.answer("/metrics", PAGE % 3, PAGE % 4)
    assert await host.metric(RESPONSES) == 7
    for counted in (1, 2):  # it dies twice
        host.aggregate.gone(1)
        host.answer("/metrics", PAGE % 3, None)
        assert await host.metric(RESPONSES) == 6 + counted
        host.answer("/metrics", PAGE % 3, PAGE % 1)
        assert await host.metric(RESPONSES) == 7 + counted
    assert await host.metric('kvgate_process_responses_total{process="1"}') == 6
    assert await host.metric("kvgate_client_connections") == 2


async def test_a_process_that_does_not_answer_in_time_keeps_its_last_page(host: Host) -> None:
    host.answer("/metrics", PAGE % 3, PAGE % 4)
    assert await host.metric(RESPONSES) == 7
    host.answer("/metrics", PAGE % 5, None)
    assert await host.metric(RESPONSES) == 9


async def test_lists_of_processes_are_merged(host: Host) -> None:
    ids = [[f"{row}-{number}" for number in range(80)] for row in (0, 1)]
    host.answer("/admin/decisions", (200, {"decisions": ids[0]}), (200, {"decisions": ids[1]}))
    merged = (await host.get("/admin/decisions"))["decisions"]
    assert (len(merged), merged[:3]) == (100, ["0-0", "1-0", "0-1"])


async def test_a_record_is_found_at_its_process(host: Host) -> None:
    host.answer("/admin/decisions/d", (404, {"error": {"message": "no such"}}), (200, {"id": "d"}))
    assert await host.get("/admin/decisions/d") == {"id": "d"}
    assert (await host.get("/admin/decisions/x", 404))["error"]["message"] == "no /admin/decisions/x"


async def test_an_answer_that_is_no_json_is_passed_on_from_the_first_process(host: Host) -> None:
    host.answer("/page", "one", "two")
    assert await (await host.client.get("/page")).text() == "one"


async def test_changes_go_to_all_processes_and_the_first_error_is_the_answer(host: Host) -> None:
    host.answer("/admin/workers", (201, {"added": True}), (200, {"added": False}))
    answer = await host.client.post("/admin/workers", json={"url": "http://w"})
    assert (answer.status, await answer.json()) == (201, {"added": True})
    for process in host.processes:
        question = AdminRequest(
            "POST", "/admin/workers", b'{"url": "http://w"}', {"Content-Type": "application/json"}
        )
        assert process.asked[-1] == question
    host.answer("/admin/workers/a%2Fb", (200, {"removed": "a/b"}), (404, {"error": {"message": "no"}}))
    assert (await host.client.delete("/admin/workers/a%2Fb")).status == 404
    assert host.num_changes == 2


async def test_a_change_without_every_answer_is_an_error(host: Host) -> None:
    host.answer("/admin/workers", (201, {"added": True}), None)
    answer = await host.client.post("/admin/workers", json={})
    assert answer.status == 503
    assert "1 of 2 processes did not answer" in (await answer.json())["error"]["message"]


async def test_credentials_are_passed_on_and_a_rejection_is_returned(host: Host) -> None:
    for target in ("/metrics", "/admin/x"):
        host.answer(target, (401, {"error": {"message": "who?"}}), (401, {"error": {"message": "who?"}}))
        assert (await host.client.get(target, headers={"Authorization": "Bearer k"})).status == 401
        assert host.processes[1].asked[-1] == AdminRequest("GET", target, b"", {"Authorization": "Bearer k"})


async def test_head_is_answered_like_get(host: Host) -> None:
    host.answer("/admin/x", (200, {}), (200, {}))
    assert (await host.client.head("/admin/x")).status == 200
    assert host.processes[0].asked[-1].method == "GET"


def test_a_request_to_a_process_is_encoded() -> None:
    question = AdminRequest("POST", "/a?b=%20", b"body", {"Content-Type": "t"})
    wire = b"POST /a?b=%20 HTTP/1.0\r\nHost: kvgate\r\nContent-Length: 4\r\nContent-Type: t\r\n\r\nbody"
    assert question.encode() == wire


async def test_a_starting_process_gets_changes_and_no_questions(host: Host) -> None:
    host.processes[1].has_begun = False
    host.answer("/admin/workers", (200, {"a": 1}), (200, {"a": 2}))
    assert await host.get("/admin/workers") == {"a": 1}
    await host.client.post("/admin/workers", json={})
    assert [question.method for question in host.processes[1].asked] == ["POST"]


async def test_a_preview_is_made_by_one_process_with_the_headers_of_the_client(host: Host) -> None:
    host.processes[0].has_begun = False
    host.answer("/admin/explain?path=/score", (200, {"worker": "a"}), (200, {"worker": "b"}))
    headers = {"x-session-id": "s"}
    answer = await host.client.post("/admin/explain?path=/score", data=b"{}", headers=headers)
    assert (answer.status, await answer.json()) == (200, {"worker": "b"})
    (question,) = host.processes[1].asked
    reported = {name.lower(): value for name, value in question.headers.items()}
    assert (question.body, reported["x-session-id"], "content-length" in reported) == (b"{}", "s", False)
    assert (host.processes[0].asked, host.num_changes) == ([], 0)
    host.answer("/admin/explain", None, None)
    assert (await host.client.post("/admin/explain", data=b"{}")).status == 503


async def test_policies_are_reloaded_by_the_supervisor_once_for_all(host: Host) -> None:
    answer = await host.client.post("/admin/policies/reload", json={})
    assert (answer.status, await answer.json()) == (200, {"policy": "p"})
    host.reloaded = AdminReply(400, "application/json", b'{"error":{"message":"line 3"}}')
    answer = await host.client.post("/admin/policies/reload", json={})
    assert (answer.status, await answer.json()) == (400, {"error": {"message": "line 3"}})
    assert (await host.client.post("/admin/policies/reload", data=b"{}")).status == 415
    assert [process.asked for process in host.processes] == [[], []]


async def test_the_configuration_is_reloaded_by_the_supervisor(host: Host) -> None:
    answer = await host.client.post("/admin/config/reload", json={})
    assert (answer.status, await answer.json()) == (200, {"generation": 2})
    assert (await host.client.post("/admin/config/reload", data=b"{}")).status == 415
    host.refusal = "policy: no"
    answer = await host.client.post("/admin/config/reload", json={})
    assert (answer.status, await answer.json()) == (400, {"error": {"message": "policy: no"}})
    assert [process.asked for process in host.processes] == [[], []]


async def test_one_process_loads_an_adapter_and_the_others_learn_its_name(host: Host) -> None:
    first, second = host.processes
    reported = (502, {"error": {"message": "1 of 2 workers did not"}, "workers": []})
    host.answer("/admin/adapters", reported, reported)
    answer = await host.client.post("/admin/adapters", json={"adapter": "a", "path": "/a"})
    assert (answer.status, await answer.json()) == reported
    assert [(each.method, each.target) for each in first.asked] == [("POST", "/admin/adapters")]
    assert [(each.method, each.target) for each in second.asked] == [("POST", "/admin/adapters/names")]
    target = "/admin/adapters/org/a?worker=x"
    host.answer(target, (200, {}), (200, {}))
    assert (await host.client.delete(target)).status == 200
    assert [each.target for each in first.asked + second.asked].count(target) == 1


async def test_a_process_that_does_not_answer_is_named_and_no_adapter_is_loaded_twice(host: Host) -> None:
    host.answer("/admin/adapters", None, (200, {}))
    answer = await host.client.post("/admin/adapters", json={})
    assert (answer.status, (await answer.json())["error"]["message"]) == (
        503,
        "a process did not answer; retry",
    )
    assert [each.target for each in host.processes[1].asked] == ["/admin/adapters/names"]
    for process in host.processes:
        process.has_begun = False
    assert (await host.client.post("/admin/adapters", json={})).status == 503
