"""Tenants' caches on a real SGLang server: proven apart before it is used, and apart in use."""

import json
from pathlib import Path

import pytest

from tests.sglang.conftest import Start
from tests.sglang.engine import SglangWorker
from tests.support.engine_figures import SALTS, EngineFigures
from tests.support.engine_process import wait_until
from tests.support.engine_talk import PROVEN, TalkAnswer, ask, complete, gateway_of, ids, is_exact, post, text
from tests.support.gateway_process import GatewayProcess
from tests.support.tenants import EVERY, NUM_PROBES, cross_tenant_hits, keys_of, salted


@pytest.fixture(scope="module")
def worker(start_module_sglang: Start) -> SglangWorker:
    return start_module_sglang(page_size=16).wait_ready()


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return salted(tmp_path_factory.mktemp("salts"))


@pytest.mark.ci
def test_tenants_share_no_cached_token(worker: SglangWorker, flags: tuple[str, ...], tmp_path: Path) -> None:
    (one, other), keys = keys_of(tmp_path, "one", "other")
    with gateway_of(worker, flags=(*flags, *keys)) as gateway:
        assert PROVEN in gateway.log()
        for seed in range(5):
            body = {"model": "m", "prompt": ids(f"salts {seed}", 100), "max_tokens": 2}
            answers = [post(gateway, "/v1/completions", body, **who) for who in (one, one, other, other)]
            assert [answer.cached for answer in answers] == [0, 96, 0, 96]
            assert [answer.predicted for answer in answers] == [0, 96, 0, 96]


def test_no_probe_of_another_tenant_is_a_hit(
    worker: SglangWorker, flags: tuple[str, ...], tmp_path: Path, figures: EngineFigures
) -> None:
    tenants, keys = keys_of(tmp_path, "one", "other")
    with gateway_of(worker, flags=(*flags, *keys)) as gateway:
        found = cross_tenant_hits(gateway, tenants)
    figures.add(SALTS, "SGLang 0.5.23", found.num_hits, found.num_probes)
    assert (found.num_probes, found.num_hits) == (NUM_PROBES, 0)
    assert found.num_own == found.num_repeats == NUM_PROBES // EVERY, found
    assert found.num_predicted == found.num_probes + found.num_repeats, found


@pytest.mark.ci
def test_a_route_that_drops_salts_is_refused(
    worker: SglangWorker, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The engine's own counts show why."""
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": text("messages", 60)}]}
    cached = [
        TalkAnswer(200, json.loads(worker.post("/v1/messages", body | {"cache_salt": salt}))).cached
        for salt in ("one", "other")
    ]
    assert cached[0] == 0 < cached[1]
    (one,), keys = keys_of(tmp_path, "one")
    with gateway_of(worker, flags=(*flags, *keys)) as gateway:
        answer = post(gateway, "/v1/messages", body, **one)
        assert answer.status == 501
        assert "cannot isolate the cached prompts of tenants on /v1/messages" in str(answer.body)
        assert post(gateway, "/v1/chat/completions", body, **one).status == 200


@pytest.mark.ci
def test_cached_tokens_of_another_salt_raise_an_alarm(worker: SglangWorker) -> None:
    """Clients choose the salts here, so that the route that drops them is open."""
    with gateway_of(worker) as gateway:
        for salt in ("one", "other"):
            answer = complete(gateway, ids("alarm", 100), cache_salt=salt)
            assert (answer.predicted, answer.cached) == (0, 0)
        assert alarms(gateway, worker) == 0
        fields = {"max_tokens": 2, "messages": [{"role": "user", "content": text("alarm", 60)}]}
        for salt in ("one", "other"):
            answer = ask(gateway, "/v1/messages", fields | {"cache_salt": salt})
        assert answer.predicted == 0 < answer.cached
        wait_until(lambda: alarms(gateway, worker) == 1, 10)
        assert "for a prompt under a tenant's salt, none of them stored under it" in gateway.log()


def alarms(gateway: GatewayProcess, worker: SglangWorker) -> int:
    name = f'kvgate_salt_alarms_total{{worker="127.0.0.1:{worker.port}"}} '
    return sum(
        int(float(line.removeprefix(name)))
        for line in gateway.metrics().splitlines()
        if line.startswith(name)
    )


def test_a_restarted_worker_proves_it_again(worker: SglangWorker, flags: tuple[str, ...]) -> None:
    with gateway_of(worker, flags=flags) as gateway:
        assert gateway.log().count(PROVEN) == 1
        worker.kill()
        wait_until(lambda: gateway.streams() == [], 60)
        worker.start().wait_ready()
        is_exact(gateway)
        assert num_proofs(worker) > 0, "the new process was asked before it got a request"
        answer = complete(gateway, ids("after the restart", 100), cache_salt="one")
        assert (answer.predicted, answer.cached) == (0, 0)


def num_proofs(worker: SglangWorker) -> int:
    """Proofs that the process at the worker's port answered, by its own count of cached tokens."""
    page = worker.get("/metrics").decode().splitlines()
    counts = [
        float(line.rpartition(" ")[2]) for line in page if line.startswith("sglang:cached_tokens_total")
    ]
    return int(sum(counts)) // 32


def test_check_names_the_proof(worker: SglangWorker, flags: tuple[str, ...]) -> None:
    assert PROVEN in GatewayProcess.check("--worker", worker.url, *flags)


def test_a_version_that_drops_salts_is_found_out(
    start_module_sglang: Start, worker: SglangWorker, flags: tuple[str, ...]
) -> None:
    """SGLang 0.5.10.post1 has the field and drops it; its pages of several tokens need a GPU."""
    worker.stop()  # its cores
    old = start_module_sglang(is_older=True).wait_ready()
    prompt = ids("dropped", 100)
    usages = [old.complete(prompt, cache_salt=salt)["usage"] for salt in ("one", "other")]
    details = [usage["prompt_tokens_details"] or {} for usage in usages]
    assert [each.get("cached_tokens", 0) for each in details] == [0, 99]
    with gateway_of(old) as plain:
        assert [answer.cached for answer in (complete(plain, prompt), complete(plain, prompt))] == [99, 99]
        later = ids("array wire", 100)
        assert [(a.predicted, a.cached) for a in (complete(plain, later), complete(plain, later))] == [
            (0, 0),
            (99, 99),
        ]
    with gateway_of(old, flags=flags) as gateway:
        refused = post(gateway, "/v1/completions", {"model": "m", "prompt": "hi"})
        assert refused.status == 501 and "isolate the cached prompts of tenants" in str(refused.body)
        assert "tenants' caches are shared" in gateway.log()
        assert "it ignores cache_salt: 32 tokens of another salt's prompt were cached" in gateway.log()
        shown = f'kvgate_worker_unusable_models{{reason="salt",worker="127.0.0.1:{old.port}"}} 1.0'
        assert shown in gateway.metrics()
