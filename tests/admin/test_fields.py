"""Fields of the admin API: each number has a rule, and gateways answer with these fields and no others."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from gateway.admin.endpoint_table import ProcessScope
from gateway.admin.fields import ReloadView, View
from gateway.app.gateway_parts import Parts
from gateway.processes.json_merge import NoRule, merger_of
from tests.support.blackbox.bench import running
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.scripted_worker import answer_ok
from tests.support.patience import until

ROUTES = Parts.admin_routes()
ANSWERS = {each.path: each.answer for each in ROUTES if each.answer and each.method == "GET"}


@pytest.mark.parametrize("path", ANSWERS)
def test_each_number_has_a_rule(path: str) -> None:
    assert merger_of(ANSWERS[path])


def test_a_number_without_a_rule_is_rejected() -> None:
    class Forgotten(View):
        count: Annotated[int, "no rule"]

    with pytest.raises(NoRule, match=r"Forgotten\.count has no rule"):
        merger_of(Forgotten)


@pytest.mark.process
@pytest.mark.interpreted
async def test_responses_have_the_declared_fields(tmp_path: Path) -> None:
    (tmp_path / "kvgate.toml").write_text("[tenants.t]\nrequests_per_s = 0.001\n")
    flags = (
        "--config",
        str(tmp_path / "kvgate.toml"),
        "--policy-shadow",
        "random",
        "--queue-above-in-flight",
        "4",
    )
    flags += ("--trust-headers-from", "127.0.0.1", "--policy", "prefix_overlap")
    flags += ("KVGATE_SCALING_MODELS=zero",)
    async with running(*flags) as bench:
        await bench.worker("m", script=answer_ok)
        for tenant in ("t", "t", "u"):
            await bench.ask(post(completion([1] * 64), (b"X-Kvgate-Tenant", tenant.encode())))
        await (await bench.client()).send(post(completion(model="zero")))

        async def is_waiting() -> bool:
            return await bench.gateway.total("kvgate_queue_requests") == 1

        await until(is_waiting, "a request waits")
        for path, answer in ANSWERS.items():
            got = (await bench.gateway.admin("GET", path)).json
            msgspec.convert(got, answer)
        policies = (await bench.gateway.admin("GET", "/admin/policies")).json
        assert policies["scores"] and policies["shadow"]
        admission = (await bench.gateway.admin("GET", "/admin/admission")).json
        assert admission["tenants"] and admission["rejections"] and admission["queues"][0]["exits"] == {}
        body = json.dumps({}).encode()
        reloaded = await bench.gateway.admin("POST", "/admin/config/reload", body)
        msgspec.convert(reloaded.json, ReloadView)


def test_endpoints_merged_across_processes_have_declared_fields() -> None:
    assert [each.path for each in ROUTES if each.processes is ProcessScope.MERGED and not each.answer] == []
