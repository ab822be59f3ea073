"""Objectives and rewrites of a pool in a gateway process: what workers get, and /admin/pool-objects."""

import json
from typing import Any

import grpc.aio
import pytest

from loadtest.ports import free_port
from tests.support.blackbox.envoy_streams import EnvoyStreams
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.kube_cluster import BY_LABEL, Cluster, cluster
from tests.support.kube_api import (
    OBJECTIVES,
    OLDER_OBJECTIVES,
    OLDER_REWRITES,
    PODS,
    POOLS,
    REWRITES,
    model_rewrite,
    objective,
    pod,
    pool,
    rewrite_rule,
)
from tests.support.patience import until

FOLLOWED = "KVGATE_KUBERNETES_POOL_OBJECTS=llm/vllm"
KINDS = (OBJECTIVES, OLDER_OBJECTIVES, REWRITES, OLDER_REWRITES)
NAMES = ("InferenceObjective", "InferenceModelRewrite")
CHAT = (b"X-Gateway-Inference-Objective", b"chat")


async def objects(kube: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = (await kube.bench.gateway.admin("GET", "/admin/pool-objects")).json
    return found


async def agreed(kube: Cluster, **expected: Any) -> None:
    async def is_so() -> bool:
        (found,) = (await objects(kube))["pools"]
        return {name: found[name] for name in expected} == expected

    await until(is_so, str(expected))


async def test_a_rewrite_chooses_the_model_and_ends_with_its_object() -> None:
    async with cluster(BY_LABEL, FOLLOWED) as kube:
        one = await kube.worker("one")
        asked = post(completion(model="chat"))
        assert (await kube.bench.ask(asked)).status == 404
        kube.api.put(
            REWRITES, model_rewrite("r", rewrite_rule("chat", to={"m": 90}), rewrite_rule(to={"m": 1}))
        )
        await agreed(kube, rewrites={"chat": {"m": 90}}, others={"m": 1}, last_error=None)
        assert (await kube.bench.ask(asked)).status == 200
        listed = (await kube.bench.ask(request("GET", "/v1/models"))).json["data"]
        assert [(each["id"], each["root"]) for each in listed] == [("chat", "m"), ("m", "m")]
        assert (await kube.bench.ask(request("GET", "/v1/models/chat"))).status == 200
        assert (await kube.bench.ask(post(completion(model="any other")))).status == 200
        assert [json.loads(call.body)["model"] for call in one.calls] == ["m", "m"]
        kube.api.remove(REWRITES, "r")
        await agreed(kube, rewrites={}, others=None)
        assert (await kube.bench.ask(asked)).status == 404


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "any client"])
async def test_an_objective_gives_its_priority_where_the_hop_is_trusted(is_trusted: bool) -> None:
    trust = ("--trust-headers-from", "127.0.0.1") if is_trusted else ()
    async with cluster(BY_LABEL, FOLLOWED, "KVGATE_EPP_OBJECTIVES=chat=2,other=1", *trust) as kube:
        one = await kube.worker("one")

        async def admitted() -> int:
            body = completion(priority=-100)
            assert (await kube.bench.ask(post(body, CHAT))).status == 200
            priority: int = json.loads(one.calls.pop().body)["priority"]
            return priority

        assert await admitted() == (-2 if is_trusted else 0)
        kube.api.put(OBJECTIVES, objective("chat", 10))
        await agreed(kube, objectives={"chat": 10})
        assert (await objects(kube))["objectives"] == {"chat": 10, "other": 1}
        assert await admitted() == (-10 if is_trusted else 0)
        kube.api.remove(OBJECTIVES, "chat")
        await agreed(kube, objectives={})
        assert await admitted() == (-2 if is_trusted else 0)


async def test_the_picker_obeys_both() -> None:
    port = free_port()
    flags = ("epp", "--epp-port", str(port), f"KVGATE_EPP_HEALTH_PORT={free_port()}", FOLLOWED)
    async with cluster("k8s://llm/inferencepool/vllm", *flags, "KVGATE_EPP_TRUST_HEADERS=true") as kube:
        kube.api.put(REWRITES, model_rewrite("r", rewrite_rule("chat", to={"m": 1})))
        kube.api.put(OBJECTIVES, objective("chat", 10))
        await agreed(kube, rewrites={"chat": {"m": 1}}, objectives={"chat": 10})
        one = await kube.started()
        kube.api.put(POOLS, pool(one.port))
        kube.api.put(PODS, pod("one"))
        await kube.joined(one)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            envoy = EnvoyStreams(channel, (CHAT[0].lower(), CHAT[1]))
            _, worker, body, _ = await envoy.ask("/v1/completions", completion(model="chat", priority=-100))
        assert worker == f"127.0.0.1:{one.port}"
        assert (json.loads(body)["model"], json.loads(body)["priority"]) == ("m", -10)


async def test_kinds_that_are_not_there_change_nothing() -> None:
    async with cluster(BY_LABEL, FOLLOWED, absent=set(KINDS)) as kube:
        await kube.worker("one")
        assert await kube.status() == 200
        await until(lambda: len(kube.api.refused) >= 4, "asked for both kinds in both groups")
        refusals = "; ".join(f"{kind}s of llm/vllm: 404 Not Found" for kind in NAMES)
        await agreed(kube, last_error=refusals)
        lines = [line for line in kube.bench.gateway.log if "Inference" in line]
        assert len(lines) == 2, "one for each kind"
