"""Workers that report impossible figures: they join, get requests, and change no other worker's share."""

import json

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.scripted_worker import Call, FakeWorker
from tests.support.patience import until


class Liar(FakeWorker):
    page = b""

    def _own(self, call: Call) -> bytes:
        return wire(200, self.page) if call.target == b"/metrics" and self.page else super()._own(call)


FIGURES = """\
vllm:num_requests_running{{engine="0"}} {0}
vllm:num_requests_waiting{{engine="0"}} {0}
vllm:kv_cache_usage_perc{{engine="0"}} {0}
vllm:prompt_tokens_total{{engine="0"}} {0}
vllm:prefix_cache_queries_total{{engine="0"}} {0}
vllm:prefix_cache_hits_total{{engine="0"}} {0}
"""


async def joined(bench: Bench, *models: object, page: bytes = b"") -> Liar:
    worker = Liar(models or ("m",))  # type: ignore[arg-type]
    worker.page = page
    await worker.start()
    bench.workers.append(worker)
    await bench.gateway.join(worker)
    return worker


@pytest.mark.parametrize("value", ["-5", "1e300", "-1e300", "NaN", "+Inf", "-Inf", "1e400"])
async def test_impossible_metrics_are_ignored(value: str) -> None:
    async with running("--probe-interval-s", "0.05") as bench:
        good = await bench.worker()
        worker = await joined(bench, page=FIGURES.format(value).encode())
        num = len(worker.probes)
        await until(lambda: len(worker.probes) > num + 12, "it was scraped")
        served = {good: 0, worker: 0}
        for _ in range(10):
            assert (await bench.ask(post(completion()))).status == 200
        for each in served:
            served[each] = len(each.calls)
        assert sum(served.values()) == 10
        endpoint = await bench.gateway.endpoint(worker)
        assert endpoint is not None
        shown = endpoint["workers"][0]
        assert (shown["running"], shown["waiting"], shown["kv_usage"]) == (None, None, None)
        totals = [v for k, v in (await bench.gateway.metrics()).items() if worker.id in k]
        assert min(totals) >= 0 and max(totals) < 1e9
        lines = [line for line in bench.gateway.log if "impossible metrics ignored" in line]
        assert len(lines) == (value in ("-5", "1e300", "-1e300")), "what is not a number is no figure"


@pytest.mark.parametrize(
    "labels", ['block_size="0"', 'block_size="99999999999"', 'num_gpu_blocks="999999999999"']
)
async def test_impossible_cache_sizes_are_ignored(bench: Bench, labels: str) -> None:
    page = f'vllm:cache_config_info{{engine="0",{labels}}} 1\n'.encode()
    worker = await joined(bench, page=page)
    assert (await bench.ask(post(completion(list(range(500)))))).status == 200
    endpoint = await bench.gateway.endpoint(worker)
    assert endpoint is not None
    shown = endpoint["workers"][0]
    assert (shown["block_size"], shown["cache_blocks"]) == (None, None)


@pytest.mark.parametrize("length", [0, -1, 10**12, 10**400])
async def test_an_impossible_model_length_is_ignored(bench: Bench, length: int) -> None:
    worker = await joined(bench, {"id": "m", "max_model_len": length})
    assert (await bench.ask(post(completion("a" * 1000)))).status == 200
    assert len(worker.calls) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"tokens": [-1, 2]},
        {"tokens": [1, 2], "count": 10**9},
        {"tokens": [1.5]},
        {"tokens": [True]},
        {"tokens": [10**400]},
        {"tokens": list(range(1_500_000))},
        {"count": 3},
    ],
)
async def test_impossible_tokens_are_ignored(bench: Bench, answer: object) -> None:
    """Requests are routed by load, as without an answer."""
    body = json.dumps(answer).encode()
    worker = await joined(bench)
    own = worker._own
    worker._own = lambda call: wire(200, body) if call.target == b"/tokenize" else own(call)  # type: ignore[method-assign]
    before = await bench.gateway.total("kvgate_prompt_tokenization_failures_total")
    assert (await bench.ask(post(completion(f"some text {len(body)}")))).status == 200
    assert await bench.gateway.total("kvgate_prompt_tokenization_failures_total") == before + 1


async def test_a_billion_ranks_are_rejected(bench: Bench) -> None:
    class Sglang(FakeWorker):
        def _own(self, call: Call) -> bytes:
            cards = {"object": "list", "data": [{"id": "m", "owned_by": "sglang"}]}
            pages = {
                b"/health": b"",
                b"/v1/models": json.dumps(cards).encode(),
                b"/server_info": b'{"version":"0.5.23","dp_size":1000000000,"page_size":1}',
            }
            return wire(200, pages[call.target]) if call.target in pages else wire(404)

    worker = await Sglang().start()
    try:
        before = bench.gateway.rss_bytes()
        await bench.gateway.admin("POST", "/admin/workers", json.dumps({"url": worker.url}).encode())
        await bench.gateway.logged(rf"waiting for worker {worker.url}: .*1000000000 data-parallel ranks")
        assert bench.gateway.rss_bytes() - before < 32 << 20
        await bench.gateway.drop(worker)
    finally:
        await worker.die()
