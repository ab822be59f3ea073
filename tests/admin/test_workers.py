"""Draining by the admin API, over HTTP; test_app.py has the other requests about workers."""

from typing import Any

import pytest

from tests.admin.conftest import admined
from tests.support.worlds.admin_api import Admined
from tests.support.worlds.roster import URL, W

__all__ = ["admined"]


async def state(admined: Admined) -> tuple[Any, ...]:
    endpoint = (await admined.get("/admin/workers"))["endpoints"][0]
    worker = endpoint["workers"][0]
    return endpoint["is_draining"], worker["state"], worker["reason"], worker["remaining_requests"]


@pytest.mark.parametrize("name", [URL, "w:1"])
async def test_a_worker_drains_and_its_drain_is_undone(admined: Admined, name: str) -> None:
    admined.router.ledger.book(W, 0, 0)
    for changed in (True, False):
        answer = await admined.client.post(f"/admin/workers/{name}/drain")
        assert (answer.status, await answer.json()) == (
            200,
            {"draining": URL, "changed": changed, "remaining_requests": 1},
        )
    assert await state(admined) == (True, "draining", "requested", 1)
    for changed in (True, False):
        answer = await admined.client.delete(f"/admin/workers/{name}/drain")
        assert (answer.status, await answer.json()) == (
            200,
            {"draining": None, "changed": changed, "remaining_requests": 1},
        )
    assert await state(admined) == (False, "active", None, 1)


async def test_a_worker_can_be_dropped_once_drained(admined: Admined) -> None:
    await admined.client.post(f"/admin/workers/{URL}/drain", json={"remove": True})
    assert (await admined.get("/admin/workers"))["drains"] == [f"removing={URL}"]
    assert admined.lifecycle.to_drop(lambda url: ()) == [URL]


async def test_a_dropped_worker_is_listed_as_gone_for_a_while(admined: Admined) -> None:
    admined.lifecycle.dropped(URL, [W])
    (gone,) = (await admined.get("/admin/workers"))["removed"]
    assert (gone["url"], gone["state"], gone["reason"]) == (URL, "removed", "removed")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_draining_an_unknown_worker_is_404(admined: Admined, method: str) -> None:
    answer = await admined.client.request(method, "/admin/workers/missing/drain")
    assert answer.status == 404
    assert (await answer.json())["error"]["message"].startswith("no worker 'missing'")


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"headers": {"Origin": "http://evil"}}, 415),
        ({"data": b"drop=true"}, 415),
        ({"json": {"dorp": True}}, 400),
        ({"json": {"remove": "yes"}}, 400),
    ],
)
async def test_a_malformed_drain_is_rejected_and_drains_no_worker(
    admined: Admined, how: dict[str, Any], status: int
) -> None:
    answer = await admined.client.post(f"/admin/workers/{URL}/drain", **how)
    assert answer.status == status
    assert await state(admined) == (False, "active", None, 0)


# networks of workers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://[fd00:ec2::254]",
        "http://[fe80::1]:8000",
        "http://0.0.0.0:8000",
        "http://224.0.0.1:8000",
        "http://100.100.100.200",
        "http://192.0.0.192:80",
        "http://metadata.google.internal",
        "http://[64:ff9b::a9fe:a9fe]",
        "dns+http://169.254.169.254",
    ],
)
async def test_a_worker_at_a_forbidden_address_is_rejected(admined: Admined, url: str) -> None:
    answer = await admined.client.post("/admin/workers", json={"url": url})
    assert answer.status == 403
    message = (await answer.json())["error"]["message"]
    assert message.startswith(url) and "for a worker: it is" in message
    assert len(list(admined.world.roster)) == 1


async def test_a_name_is_resolved_before_its_worker_is_added(
    admined: Admined, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1", "169.254.169.254"]

    monkeypatch.setattr("gateway.admin.workers.resolve", resolve)
    answer = await admined.client.post("/admin/workers", json={"url": "http://rebound:80"})
    assert answer.status == 403


async def test_a_kubernetes_url_is_refused_outside_a_cluster(admined: Admined) -> None:
    for url, status, words in (
        ("k8s://llm/service/vllm", 403, "KUBERNETES_SERVICE_HOST is not set"),
        ("k8s://llm/deployment/vllm", 400, "'deployment' is not a kind of object"),
    ):
        answer = await admined.client.post("/admin/workers", json={"url": url})
        assert (answer.status, words in (await answer.json())["error"]["message"]) == (status, True)


async def test_a_name_with_several_addresses_can_be_added_and_removed(admined: Admined) -> None:
    url = "dns+http://localhost:1"
    for status in (201, 200):
        assert (await admined.client.post("/admin/workers", json={"url": url})).status == status
    await admined.resolver.look()
    (name,) = (await admined.get("/admin/workers"))["sources"]
    assert (name["url"], name["spec"], "http://127.0.0.1:1" in name["members"]) == (url, url, True)
    assert (await admined.client.delete(f"/admin/workers/{url}")).status == 200
    assert (await admined.get("/admin/workers"))["sources"] == []
    assert len(list(admined.world.roster)) == 1
