"""Workers with odd answers to their probes, beside a good one."""

import json

from tests.support.blackbox.http1_bytes import completion, post, wire
from tests.support.blackbox.scripted_worker import METRICS, Call, FakeWorker
from tests.support.blackbox.siege import ESCAPES, Siege, count, siege
from tests.support.patience import until

NUM_MODELS = count(100_000, 1_000_000)
OK = wire(200, b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}', (b"Content-Type", b"application/json"))


def cards(*ids: str, **more: object) -> bytes:
    data = [{"id": name, "owned_by": "vllm", **more} for name in ids]
    return json.dumps({"object": "list", "data": data}).encode()


def gauges(value: str) -> bytes:
    return METRICS.replace("} 0\n", f"}} {value}\n").replace("0.25", value).encode()


def sizes(**labels: str) -> bytes:
    page = METRICS
    for name, value in labels.items():
        page = page.replace(f'{name}="16"', f'{name}="{value}"').replace(
            f'{name}="1000"', f'{name}="{value}"'
        )
    return page.encode()


def many_models() -> bytes:
    return b'{"data":[' + b",".join(b'{"id":"h%d","parent":"h"}' % n for n in range(NUM_MODELS)) + b"]}"


def many_ranks(num: int) -> bytes:
    lines = (f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in range(num))
    return ("".join(lines) + METRICS).encode()


NESTED = b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
MODELS, PAGE, TOKENIZE = b"/v1/models", b"/metrics", b"/tokenize"

ODD: dict[str, dict[bytes, bytes]] = {
    "models without end": {MODELS: many_models()},
    "models, each twice": {MODELS: cards(*["h"] * 10_000)},
    "adapters of adapters": {MODELS: cards(*(f"h{n}" for n in range(5000)), parent="h1", root="h2")},
    "escapes in a name": {MODELS: cards("h" + ESCAPES, "i", root=ESCAPES)},
    "no name": {MODELS: cards("")},
    "a long name": {MODELS: cards("h" * 1_000_000)},
    "nested": {MODELS: NESTED, b"/version": NESTED, b"/server_info": NESTED},
    "no numbers": {PAGE: gauges("NaN")},
    "infinite numbers": {PAGE: gauges("+Inf")},
    "negative numbers": {PAGE: gauges("-5")},
    "huge numbers": {PAGE: gauges("1e308")},
    "long numbers": {PAGE: sizes(block_size="9" * 5000, num_gpu_blocks="9" * 5000)},
    "no blocks": {PAGE: sizes(block_size="0", num_gpu_blocks="0")},
    "huge blocks": {PAGE: sizes(block_size="9" * 15, num_gpu_blocks="9" * 15)},
    "ranks without end": {PAGE: many_ranks(20_000)},
    "samples without end": {PAGE: b'vllm:num_requests_running{engine="0"} 1\n' * 180_000},
    "a page of nothing": {PAGE: b"#" * (8 << 20)},
    "a list of nothing": {MODELS: b'{"data":[{"id":"h","x":[' + b"1," * 1_500_000 + b"1]}]}"},
    "as many ranks as are taken": {PAGE: many_ranks(1000), MODELS: cards(*(f"h{n}" for n in range(200)))},
    "tokens without end": {TOKENIZE: json.dumps({"tokens": [1] * 500_000}).encode()},
    "tokens that are none": {TOKENIZE: b'{"tokens":[-1,99999999999999999999999,null]}'},
    "a redirect": {MODELS: wire(302, b"", (b"Location", b"http://169.254.169.254/latest"))},
    "escapes in an error": {MODELS: wire(500, ESCAPES.encode()), PAGE: wire(500, ESCAPES.encode())},
    "a coding": {PAGE: wire(200, b"abcde", (b"Content-Encoding", b"gzip"))},
    "a version": {b"/version": json.dumps({"version": ESCAPES * 1000}).encode()},
    "a length of its own": {MODELS: cards("h", max_model_len=2**63 - 1)},
}


class OddWorker(FakeWorker):
    def __init__(self, pages: dict[bytes, bytes]) -> None:
        super().__init__(("h",))
        self.pages = pages

    def _own(self, call: Call) -> bytes:
        page = self.pages.get(call.target)
        if page is None:
            return super()._own(call)
        return page if page.startswith(b"HTTP/") else wire(200, page)


async def answer_well(call: Call) -> None:
    await call.send(OK)


async def one(under: Siege, pages: dict[bytes, bytes]) -> None:
    """Add an odd worker, request its models, drop it; the gateway stays well all the while."""
    worker = OddWorker(pages)
    worker.script = answer_well
    await worker.start()
    try:
        answer = await under.gateway.admin("POST", "/admin/workers", json.dumps({"url": worker.url}).encode())
        assert answer.status == 201, answer.body
        await until(lambda: len(worker.probes) > 2, "it was asked")
        for model in ("h", "h1", "h" + ESCAPES):
            asked = await under.ask(post(completion("hello " * 20, model=model)))
            assert asked.status in (200, 400, 404, 502, 503), (asked.status, asked.body[:300])
            assert len(asked.body) < 10_000
        for path in ("/metrics", "/admin/workers"):
            assert (await under.gateway.admin("GET", path)).status == 200
        before = len(worker.probes)
        await until(lambda: len(worker.probes) > before, "it is asked again")
    finally:
        await under.gateway.drop(worker)
        await worker.die()


async def test_odd_workers_affect_no_other_worker() -> None:
    async with siege("--probe-interval-s", "0.2", "--events", "off") as under:
        for oddity, pages in ODD.items():
            try:
                num = await under.keep_good(one(under, pages))
            except AssertionError as exc:
                raise AssertionError(f"{oddity}: {exc}") from exc
            assert num
            assert not under.faults(), (oddity, under.faults()[:5])
        page = (await under.gateway.admin("GET", "/metrics")).body
        assert len(page) < 200_000, f"{len(page)} bytes of metrics when all of them are gone"
