"""A fleet that starts from zero: a request that finds no worker reaches KEDA's stream, and advice follows."""

import grpc

from gateway.proto.kvgate.v1 import external_scaler_pb2 as pb
from loadtest.ports import free_port
from tests.support.blackbox.kube_cluster import BY_LABEL, cluster
from tests.support.patience import until

SCALER = "/externalscaler.ExternalScaler/"
MODEL = "m"


async def test_a_request_at_zero_workers_starts_the_fleet() -> None:
    port = free_port()
    async with (
        cluster(BY_LABEL, "--scaling-port", str(port)) as kube,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        reference = pb.ScaledObjectRef(name="vllm", namespace="llm", scalerMetadata={"model": MODEL})
        asked = pb.GetMetricsRequest(scaledObjectRef=reference, metricName="kvgate-replicas")
        active = channel.unary_stream(
            f"{SCALER}StreamIsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )(reference, wait_for_ready=True)
        assert not (await active.read()).result
        assert await kube.status() == 503
        assert (await active.read()).result

        values = channel.unary_unary(
            f"{SCALER}GetMetrics", pb.GetMetricsRequest.SerializeToString, pb.GetMetricsResponse.FromString
        )

        async def is_one_wanted() -> bool:
            return (await values(asked)).metricValues[0].metricValue == 1

        await until(is_one_wanted, "a worker is advised")
        await kube.worker("one")
        assert await kube.status() == 200

        async def has_advice() -> bool:
            groups = (await kube.bench.gateway.admin("GET", "/admin/advice")).json["groups"]
            return any(each["id"] == f"{MODEL}:both" and each["workers"] == 1 for each in groups)

        await until(has_advice, "advice for the worker's group")
        page = (await kube.bench.gateway.admin("GET", "/metrics")).body.decode()
        assert f'kvgate_scaling_workers{{model="{MODEL}",role="both"}} 1.0' in page
        active.cancel()
