"""Pages of other sites in browsers, from outside: off by default, and what `--cors-origins` opens."""

from pathlib import Path

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, request, wire
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.scripted_worker import says
from tests.support.blackbox.strict_client import Answer

PAGE = b"http://localhost:5173"
ORIGIN = (b"Origin", PAGE)
PREFLIGHT = [
    ORIGIN,
    (b"Access-Control-Request-Method", b"POST"),
    (b"Access-Control-Request-Headers", b"authorization,content-type"),
]
ALLOWED = b"access-control-allow-origin"
OWN_HEADERS = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-expose-headers", b"server")]


def allowed(answer: Answer) -> list[bytes]:
    return [value for name, value in answer.headers if name.lower() == ALLOWED]


async def preflight(bench: Bench, path: str = "/v1/chat/completions") -> Answer:
    return await bench.ask(request("OPTIONS", path, None, *PREFLIGHT))


async def test_pages_of_other_sites_read_nothing_by_default() -> None:
    async with running() as bench:
        await bench.worker(script=says(wire(200, b"{}", *OWN_HEADERS)))
        assert (await preflight(bench)).status == 405
        answer = await bench.ask(post(completion(), ORIGIN))
        assert answer.status == 200
        assert not any(name.lower().startswith(b"access-control") for name, _ in answer.headers)


async def test_a_page_of_an_allowed_origin_reads_every_answer(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "acme")
    file.write_text(line)
    flags = ["--key-file", str(file), "--cors-origins", PAGE.decode(), "--max-body-bytes", "1000"]
    async with running(*flags) as bench:
        worker = await bench.worker(script=says(wire(200, b"{}", *OWN_HEADERS)))
        opened = await preflight(bench)
        assert (opened.status, allowed(opened)) == (204, [PAGE]), "before authentication"
        assert worker.calls == []

        assert allowed(await bench.ask(post(completion(), ORIGIN, bearer(key)))) == [PAGE], "not the worker's"
        refused = {
            401: post(completion(), ORIGIN),
            404: request("GET", "/v1/nothing", None, ORIGIN, bearer(key)),
            413: post(b'{"model":"m","prompt":"' + b"x" * 2000 + b'"}', ORIGIN, bearer(key)),
        }
        for status, wanted in refused.items():
            answer = await bench.ask(wanted)
            assert (answer.status, allowed(answer)) == (status, [PAGE])
        assert allowed(await bench.ask(request("GET", "/v1/models", None, ORIGIN, bearer(key)))) == [PAGE]
        worker.script = says(SSE_HEAD + chunked(event("hi"), DONE))
        assert allowed(await bench.ask(post(completion(stream=True), ORIGIN, bearer(key)))) == [PAGE]

        foreign = (b"Origin", b"https://evil.example")
        other = await bench.ask(request("OPTIONS", "/v1/models", None, foreign, *PREFLIGHT[1:]))
        assert (other.status, allowed(other)) == (403, [])
        assert allowed(await bench.ask(post(completion(), foreign, bearer(key)))) == []


async def test_the_admin_port_stays_closed_to_other_sites() -> None:
    async with running("--cors-origins", "*") as bench:
        await bench.worker()
        assert allowed(await preflight(bench, "/v1/models")) == [b"*"]
        for method, path in (("OPTIONS", "/admin/policy"), ("GET", "/admin/workers"), ("GET", "/")):
            answer = await bench.gateway.admin(method, path, None, *PREFLIGHT)
            assert answer.status in (403, 405) and allowed(answer) == []
