"""An engine with an unserved model in its list, and a /tokenize that never answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.blockless import complete
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

pytestmark = pytest.mark.process

MODELS = [{"id": name, "object": "model", "owned_by": "llamacpp"} for name in ("real", "listed-only")]


class LyingEngine(ThreadingHTTPServer):
    """Answers for any model name, as llama.cpp does; `asked` are the names of completions."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.over = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: LyingEngine

    def log_message(self, format: str, *args: Any) -> None:
        """Keep standard error free of requests."""

    def do_GET(self) -> None:
        answers = {"/health": {"status": "ok"}, "/v1/models": {"object": "list", "data": MODELS}}
        self._answer(200 if self.path in answers else 404, answers.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            self.server.over.wait(patience(60))
            return
        self.server.asked.append(body["model"])
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        answer = {"model": body["model"], "choices": [{"index": 0, "text": "a"}], "usage": usage}
        self._answer(200, answer)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def engine() -> Iterator[LyingEngine]:
    with LyingEngine() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


async def test_only_the_model_that_answers_is_used_and_a_hanging_tokenize_costs_no_request(
    engine: LyingEngine,
) -> None:
    url = f"http://127.0.0.1:{engine.server_port}"
    with GatewayProcess("--worker", url, "--expose-headers") as gateway:
        assert gateway.admin("/admin/workers")["endpoints"][0]["engine"] == "llamacpp"
        assert complete(gateway, "real", "a b c").status == 200
        refused = complete(gateway, "listed-only", "a b c")
        assert refused.status == 501 and "would answer from another model" in refused.error
        assert "not used for listed-only" in gateway.log()
    (probed,) = [name for name in engine.asked if name != "real"]
    assert probed.startswith("kvgate-no-model-")
