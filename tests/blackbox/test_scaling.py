"""A fleet that starts from zero: requests wait, KEDA's stream fires, and the first worker answers them."""

import grpc

from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from loadtest.ports import free_port
from tests.support.blackbox.http1_bytes import completion, post
from tests.support.blackbox.kube_cluster import BY_LABEL, Cluster, cluster
from tests.support.patience import until

SCALER = "/externalscaler.ExternalScaler/"
MODEL = "m"


NUM_WAITING = 5
FLAGS = ("--queue-above-in-flight", "1", "--trust-headers-from", "127.0.0.1")


async def test_requests_at_zero_workers_start_the_fleet_and_are_answered_by_priority() -> None:
    port, health = free_port(), free_port()
    picker = ("--epp-port", str(free_port()), "--epp-health-port", str(health))
    async with (
        cluster(BY_LABEL, "--scaling-port", str(port), *picker, *FLAGS) as kube,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert await is_serving(health, "readiness"), "a gateway in front would send it nothing"
        reference = pb.ScaledObjectRef(name="vllm", namespace="llm", scalerMetadata={"model": MODEL})
        asked = pb.GetMetricsRequest(scaledObjectRef=reference, metricName="kvgate-replicas")
        active = channel.unary_stream(
            f"{SCALER}StreamIsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )(reference, wait_for_ready=True)
        assert not (await active.read()).result
        clients = []
        for priority in (3, 1, 4, 2, 0):
            clients.append(await kube.bench.client())
            await clients[-1].send(post(completion(f"{priority}"), priority_header(priority)))
        assert (await active.read()).result
        await until(lambda: num_waiting(kube, NUM_WAITING), "all requests wait")

        values = channel.unary_unary(
            f"{SCALER}GetMetrics", pb.GetMetricsRequest.SerializeToString, pb.GetMetricsResponse.FromString
        )

        async def is_one_wanted() -> bool:
            try:
                return (await values(asked)).metricValues[0].metricValue == 1
            except grpc.aio.AioRpcError as error:  # before the first advice, on which an HPA does nothing
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False

        await until(is_one_wanted, "a worker is advised")
        worker = await kube.worker("one")
        assert [(await client.answer()).status for client in clients] == [200] * NUM_WAITING
        assert [call.wish for call in worker.calls] == [completion(f"{each}") for each in range(NUM_WAITING)]
        await kube.bench.gateway.logged("model m: no worker is up; requests wait for the first one")
        await kube.bench.gateway.logged(r"model m: a worker is up after .* s; the 5 requests that waited")

        async def has_advice() -> bool:
            groups = (await kube.bench.gateway.admin("GET", "/admin/advice")).json["groups"]
            return any(each["id"] == f"{MODEL}:both" and each["workers"] == 1 for each in groups)

        await until(has_advice, "advice for the worker's group")
        page = (await kube.bench.gateway.admin("GET", "/metrics")).body.decode()
        assert f'kvgate_scaling_workers{{model="{MODEL}",role="both"}} 1.0' in page
        assert f'kvgate_queue_exits_total{{model="{MODEL}",result="served"}} 5.0' in page
        active.cancel()


def priority_header(priority: int) -> tuple[bytes, bytes]:
    return b"x-kvgate-priority", b"%d" % priority


async def num_waiting(kube: Cluster, num: int) -> bool:
    queues = (await kube.bench.gateway.admin("GET", "/admin/admission")).json["queues"]
    return any(each["queued_requests"] == num and each["zero_for_s"] >= 0 for each in queues)


async def is_serving(port: int, service: str) -> bool:
    """Ask the picker's health port, as Envoy and charts do."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = b"\x0a" + bytes([len(service)]) + service.encode()
        return (
            await channel.unary_unary("/grpc.health.v1.Health/Check")(asked, wait_for_ready=True)
            == b"\x08\x01"
        )
