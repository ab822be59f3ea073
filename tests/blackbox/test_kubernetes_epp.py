"""The endpoint picker before an InferencePool in Kubernetes: `kvgate epp`, with gRPC as Envoy speaks it."""

import grpc.aio
import pytest

from gateway.epp.health import CHECK
from gateway.proto.kvgate.v1 import ext_proc_pb2 as pb
from loadtest.ports import free_port
from tests.support.blackbox.envoy_streams import EnvoyStreams
from tests.support.blackbox.kube_cluster import cluster
from tests.support.kube_api import PODS, POOLS, pod, pool
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

POOL = "k8s://llm/inferencepool/vllm"
BODY = b'{"model":"m","prompt":"hi","max_tokens":1}'
READINESS = bytes(pb.HealthRequest(service="readiness").SerializeToString())
READY, NOT_YET = b"\x08\x01", b"\x08\x02"


async def test_the_picker_follows_a_pool() -> None:
    port, health = str(free_port()), str(free_port())
    ports = ("--epp-port", port, f"KVGATE_EPP_HEALTH_PORT={health}")
    async with (
        cluster(POOL, "epp", *ports) as kube,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{health}") as probe,
    ):
        envoy, check = EnvoyStreams(channel), probe.unary_unary(CHECK.decode())

        async def picked() -> tuple[int, str]:
            status, worker, *_ = await envoy.ask("/v1/completions", BODY)
            return status, worker

        assert (await picked(), await check(READINESS, wait_for_ready=True)) == ((503, ""), NOT_YET)
        one, two = await kube.started(), await kube.started()
        kube.api.put(POOLS, pool(one.port, two.port))
        kube.api.put(PODS, pod("one", annotations={"llm-d.ai/active-ports": f"{one.port}"}))
        await kube.joined(one)
        assert (await picked(), await check(READINESS)) == ((0, f"127.0.0.1:{one.port}"), READY)
        kube.api.put(PODS, pod("one", annotations={"llm-d.ai/active-ports": f"{two.port}"}))
        await kube.joined(two)
        await kube.left(one)
        assert await picked() == (0, f"127.0.0.1:{two.port}")
        await kube.api.stop()
        assert await picked() == (0, f"127.0.0.1:{two.port}")
        await kube.api.start()
        kube.api.remove(POOLS, "vllm")

        async def is_refused() -> bool:
            return (await picked())[0] == 503

        await until(is_refused, "a pool that is gone has no workers")
