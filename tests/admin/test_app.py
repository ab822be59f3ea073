"""Admin API over HTTP, before a fleet that the test writes."""

from io import BytesIO
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.app import MAX_RECENT, MAX_REQUESTS
from gateway.admin.console.traffic_history import INTERVAL_S
from gateway.config import load
from gateway.core.event_stream import StreamState
from gateway.core.usage import Usage
from gateway.core.value import replace
from gateway.core.worker import ReportedLoad, WorkerId
from gateway.disaggregation.stats import disaggregation_stats_of
from tests.support.fakes import decision
from tests.support.worlds.admin_api import Admined
from tests.support.worlds.roster import RANK, URL, RosterWorld, W

pytestmark = pytest.mark.process


# health ----------------------------------------------------------------------------------------


async def test_health_is_200_while_the_gateway_is_stopping(admined: Admined) -> None:
    admined.api.is_stopping = True
    assert await admined.get("/health") == {"status": "alive"}


async def test_ready_is_200_while_a_worker_is_up_and_the_gateway_is_not_stopping(admined: Admined) -> None:
    assert await admined.get("/ready") == {"status": "ready"}
    assert await admined.get("/ready?model=m") == {"status": "ready"}
    error = (await admined.get("/ready?model=x", 503))["error"]
    assert (error["message"], error["code"]) == ("no worker for 'x' is up", "no_worker")
    admined.world.member().is_up = False
    assert (await admined.get("/ready", 503))["error"]["message"] == "no worker is up"
    admined.world.member().is_up, admined.api.is_stopping = True, True
    assert (await admined.get("/ready", 503))["error"]["message"] == "the gateway is stopping"


async def test_metrics_have_the_content_type_of_prometheus(admined: Admined) -> None:
    answer = await admined.client.get("/metrics")
    assert answer.content_type == "text/plain"
    families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    assert families["kvgate_worker_up"].samples[0].labels == {"worker": "w:1"}


# workers ---------------------------------------------------------------------------------------


async def test_workers_are_shown_with_every_field(admined: Admined) -> None:
    world = admined.world
    world.member().reported = ReportedLoad(1, 2, 0.5)
    world.member().num_failures = 4
    admined.lifecycle.note_states(5.0)
    admined.lifecycle.note_states(6.0)
    admined.lifecycle.ejections[W, "stalled"] = 2
    counts = world.metrics.worker(W)
    for _ in range(3):
        world.metrics.decided(decision("d", W))
    counts.report(Usage(100, 5, 64), decision("d", W))
    counts.ttft_s.observe(0.15)
    counts.ttft_s.observe(70.0)
    admined.router.ledger.book(W, 40, 100)
    admined.router.disaggregation = disaggregation_stats_of(load({}, environ={})).policy
    admined.router.disaggregation.ban(W, WorkerId("d:1"), "they differ")
    world.probe("http://late:1").health = "refused"
    await world.add("http://late:1")
    assert await admined.get("/admin/workers") == {
        "drains": [],
        "sources": [],
        "removed": [],
        "in_panic": {},
        "endpoints": [
            {
                "url": URL,
                "state": "joined",
                "is_draining": False,
                "engine": "fake",
                "version": "1",
                "role": "both",
                "spec": URL,
                "is_discovered": False,
                "last_error": None,
                "token_sources": [],
                "workers": [
                    {
                        "id": "w:1",
                        "is_up": True,
                        "is_late": False,
                        "state": "active",
                        "reason": None,
                        "share": 1.0,
                        "remaining_requests": 1,
                        "since": 5.0,
                        "ejections": {"stalled": 2},
                        "models": ["m"],
                        "unusable_models": {},
                        "block_size": 4,
                        "cache_blocks": 100,
                        "in_flight": 1,
                        "booked_tokens": 40,
                        "remote_in_flight": 0,
                        "running": 1,
                        "waiting": 2,
                        "kv_usage": 0.5,
                        "failed_requests": 4,
                        "stream": "catching_up",
                        "excluded_pairs": {"d:1": "they differ"},
                        "predictions": {"compared": 7},
                        "traffic": {
                            "requests": 3,
                            "ttft": {"0.1-0.2": 1, "60.0-inf": 1},
                            "prompt_tokens": 300,
                            "predicted_cached_tokens": 192,
                            "reported_prompt_tokens": 100,
                            "reported_cached_tokens": 64,
                        },
                        "prefill_tokens_per_s": None,
                        "blind": None,
                        "events": "tcp://*:1",
                        "agent": None,
                        "replay": "tcp://*:2",
                        "events_connected": True,
                    }
                ],
            },
            {
                "url": "http://late:1",
                "state": "joining",
                "is_draining": False,
                "engine": None,
                "version": None,
                "role": None,
                "spec": "http://late:1",
                "is_discovered": False,
                "last_error": "refused",
                "token_sources": [],
                "workers": [],
            },
        ],
    }


async def test_a_worker_can_be_added_with_a_role(admined: Admined) -> None:
    body = {"url": "http://p:1", "role": "prefill"}
    answer = await admined.client.post("/admin/workers", json=body)
    assert answer.status == 201
    shown = (await admined.get("/admin/workers"))["endpoints"][1]
    assert (shown["url"], shown["spec"]) == ("http://p:1", "prefill=http://p:1")
    answer = await admined.client.post("/admin/workers", json={"url": "http://x:1", "role": "both"})
    assert answer.status == 400


async def test_a_worker_without_events_is_shown(admined: Admined) -> None:
    admined.world.probe("http://n:1").sources = ()
    await admined.world.add("http://n:1")
    shown = (await admined.get("/admin/workers"))["endpoints"][1]["workers"][0]
    assert {name: shown[name] for name in ("stream", "events", "replay", "events_connected")} == {
        "stream": None,
        "events": None,
        "replay": None,
        "events_connected": False,
    }


async def test_a_worker_is_added_and_dropped(admined: Admined) -> None:
    for status, added in [(201, True), (200, False)]:
        answer = await admined.client.post("/admin/workers", json={"url": "http://New:1/"})
        assert (answer.status, await answer.json()) == (status, {"url": "http://new:1", "added": added})
    await admined.world.roster.first_look()
    assert len(admined.world.fleet) == 2
    answer = await admined.client.delete("/admin/workers/new:1")
    assert (answer.status, await answer.json()) == (200, {"removed": "new:1"})
    assert len(admined.world.fleet) == 1


@pytest.mark.parametrize(
    "name", ["http://w:1", "http://w:1/", "w:1", quote("http://w:1", safe=""), "w:1%230"]
)
async def test_a_worker_is_dropped_by_url_or_id(name: str) -> None:
    world = RosterWorld()
    world.probe().ranks = {0: RANK, 1: RANK}
    await world.add()
    async with Admined(world).client as client:
        assert (await client.delete(f"/admin/workers/{name}")).status == 200
    assert len(world.fleet) == 0
    await world.roster.stop()


async def test_dropping_an_unknown_worker_is_404(admined: Admined) -> None:
    answer = await admined.client.delete("/admin/workers/missing")
    assert answer.status == 404
    assert (await answer.json())["error"]["message"].startswith("no worker 'missing'")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"url": "ftp://x"}', "is not an http(s) URL"),
        (b'{"url": 1}', "Expected `str`"),
        (b'{"link": "http://x"}', "unknown field `link`"),
        (b"{}", "missing required field `url`"),
        (b"\xff", ""),
    ],
)
async def test_an_invalid_worker_is_rejected(admined: Admined, body: bytes, words: str) -> None:
    answer = await admined.client.post(
        "/admin/workers", data=body, headers={"content-type": "application/json"}
    )
    assert answer.status == 400
    assert words in (await answer.json())["error"]["message"]


async def test_a_browser_cannot_add_a_worker_from_another_origin(admined: Admined) -> None:
    """A page may send text/plain or a form across origins without a preflight, JSON not."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = await admined.client.post(
            "/admin/workers", data=b'{"url": "http://x"}', headers={"content-type": kind}
        )
        assert answer.status == 415
    assert len(list(admined.world.roster)) == 1


# index and decisions ---------------------------------------------------------------------------


async def test_blocks_of_a_worker_are_listed(admined: Admined, monkeypatch: pytest.MonkeyPatch) -> None:
    admined.world.store(1, 2, 3)
    listed = await (await admined.client.get("/admin/index/w:1/blocks")).text()
    assert sorted(map(int, listed.split())) == sorted(admined.world.known.index.blocks(W))
    assert len(listed.split()) == 3
    unknown = await admined.get("/admin/index/x:1/blocks", 404)
    assert "no worker 'x:1'" in unknown["error"]["message"]
    monkeypatch.setattr("gateway.admin.app.MAX_LISTED_BLOCKS", 2)
    many = await admined.get("/admin/index/w:1/blocks", 413)
    assert many["error"]["message"] == "worker 'w:1' caches 3 blocks; at most 2 can be listed"


async def test_the_index_is_shown_by_worker(admined: Admined) -> None:
    admined.world.store(1, 2, 3)
    shown = await admined.get("/admin/index")
    assert shown["index"] == "MemoryIndex(workers=1, blocks=3)"
    (worker,) = shown["workers"]
    assert (worker["worker"], worker["stream"], worker["blocks"]) == ("w:1", "exact", 3)
    assert (worker["assumed_blocks"], worker["pinned_blocks"]) == (0, 0)
    assert worker["applied"]["stored_blocks"] == 3


async def test_the_latest_decisions_newest_first(admined: Admined) -> None:
    for i in range(MAX_RECENT + 5):
        admined.records.add(decision(f"d{i}"))
    decisions = (await admined.get("/admin/decisions"))["decisions"]
    assert (len(decisions), decisions[0]) == (MAX_RECENT, f"d{MAX_RECENT + 4}")


async def test_a_decision_is_shown_with_its_candidates(admined: Admined) -> None:
    admined.records.add(replace(decision("d1", "a:1", "b:1"), terms=(1.0, float("inf"))))
    record = await admined.get("/admin/decisions/d1")
    assert [candidate["cost"] for candidate in record["candidates"]] == [1.0, None]
    assert (await admined.get("/admin/decisions/none", 404))["error"]["message"].startswith(
        "no such decision"
    )


async def test_a_stream_state_is_shown_as_a_word(admined: Admined) -> None:
    admined.world.roster.stream_changed(WorkerId("w:1"), StreamState.BLIND)
    (worker,) = (await admined.get("/admin/index"))["workers"]
    assert worker["stream"] == "blind"


# tokenizer --------------------------------------------------------------------------------------


async def test_the_encoder_of_each_model_is_shown(admined: Admined) -> None:
    assert await admined.get("/admin/tokenizer") == {"models": [{"model": "m", "encoder": "fake"}]}


async def test_causes_of_cache_loss_are_shown(admined: Admined) -> None:
    loss = await admined.get("/admin/cache-loss")
    assert (loss["computed_tokens"], loss["causes"], loss["largest"]) == (0, [], [])


async def test_verification_is_shown_in_full_and_summed_up_per_worker(admined: Admined) -> None:
    assert await admined.get("/admin/verify") == {"workers": [{"worker": W, "compared": 7}]}
    assert await admined.get("/admin/advice") == {"groups": [], "prefill_decode": []}
    assert await admined.get("/admin/admission") == {
        "is_enabled": True,
        "queues": [{"model": "m", "waiting": 3}],
    }
    (endpoint,) = (await admined.get("/admin/workers"))["endpoints"]
    assert endpoint["workers"][0]["predictions"] == {"compared": 7}


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/admin/worker", 404, "there is no endpoint /admin/worker; known: /, /admin/admission, "),
        ("POST", "/admin/verify", 405, "/admin/verify accepts GET, HEAD, not POST"),
        ("POST", "/admin/workers", 413, "Maximum request body size"),
    ],
)
async def test_errors_of_the_server_are_json(
    admined: Admined, method: str, path: str, status: int, words: str
) -> None:
    body = BytesIO(b'"' + b"x" * (1 << 21) + b'"')
    answer = await admined.client.request(
        method, path, data=body if status == 413 else None, headers={"Content-Type": "application/json"}
    )
    assert (answer.status, answer.content_type) == (status, "application/json")
    assert (await answer.json())["error"]["message"].startswith(words)
    assert answer.headers.get("Allow") == ("GET, HEAD" if status == 405 else None)


async def test_an_explained_body_may_be_as_long_as_an_inference_body(admined: Admined) -> None:
    answer = await admined.client.post("/admin/explain", data=BytesIO(b"{" + b" " * (2 << 20)))
    assert answer.status == 400 and "not a JSON object" in (await answer.json())["error"]["message"]


async def test_policies_are_shown_and_reloaded(admined: Admined) -> None:
    shown = await admined.get("/admin/policies")
    assert (shown["policy"], shown["fallbacks"], shown["file"]) == ("least_load", [], None)
    assert {"prefix_overlap", "topology", "random"} <= set(shown["available"])
    answer = await admined.client.post("/admin/policies/reload", json={})
    assert (answer.status, (await answer.json())["policy"]) == (200, "least_load")
    assert (await admined.client.post("/admin/policies/reload", data=b"{}")).status == 415


async def test_a_configuration_reload_is_answered_with_its_generation_or_the_reason(admined: Admined) -> None:
    answer = await admined.client.post("/admin/config/reload", json={})
    assert (answer.status, await answer.json()) == (200, {"generation": 2})
    assert (await admined.client.post("/admin/config/reload", data=b"{}")).status == 415
    admined.refusal = "policy: no"
    answer = await admined.client.post("/admin/config/reload", json={})
    assert (answer.status, (await answer.json())["error"]["message"]) == (400, "policy: no")


# requests and traffic ----------------------------------------------------------------------------


async def test_the_latest_requests_are_listed_and_found_by_id(admined: Admined) -> None:
    for number in range(3):
        admined.records.add(made := decision(f"d{number}"))
        admined.records.finish(made, "ended", 200, 0.25, None, 1.0, f"r{number}".encode())
    assert [each["id"] for each in (await admined.get("/admin/requests"))["requests"]] == ["d2", "d1", "d0"]
    assert [each["id"] for each in (await admined.get("/admin/requests?limit=1"))["requests"]] == ["d2"]
    assert [each["id"] for each in (await admined.get("/admin/requests?id=r1"))["requests"]] == ["d1"]


@pytest.mark.parametrize("number", ["", "0", "-1", "x", str(MAX_REQUESTS + 1), "9" * 30])
async def test_a_number_that_is_none_is_400(admined: Admined, number: str) -> None:
    for path in ("/admin/requests", "/admin/traffic"):
        error = (await admined.get(f"{path}?limit={number}", 400))["error"]
        assert "limit must be a number" in error["message"]


async def test_traffic_is_listed_by_interval(admined: Admined) -> None:
    assert await admined.get("/admin/traffic") == {"interval_s": INTERVAL_S, "intervals": []}
