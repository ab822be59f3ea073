"""Hub on loopback, with the part of its API that its library uses."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "a" * 40


class FakeHub:
    """Each repository is a directory; `token` is required where it is given. `asked` are paths."""

    def __init__(self, repositories: Mapping[str, Path], token: str | None = None) -> None:
        self.repositories = repositories
        self.token = token
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        for name, directory in self.repositories.items():
            if name not in path:
                continue
            if self.token and authorization != f"Bearer {self.token}":
                return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "you were not let in"}, b""
            if path.startswith("/api/"):
                files = [str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file()]
                status = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": each} for each in files]}
                if "/tree/" in path:
                    sizes = [
                        {"type": "file", "path": each, "oid": _etag(directory / each), "size": 1}
                        for each in files
                    ]
                    return 200, {}, json.dumps(sizes).encode()
                return 200, {}, json.dumps(status).encode()
            file = directory / path.split(f"/resolve/{COMMIT}/")[-1].split("/resolve/main/")[-1]
            if file.is_file():
                return 200, {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT}, file.read_bytes()
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repository"}, b""


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use(monkeypatch: pytest.MonkeyPatch, cache: Path, url: str = "", token: str | None = None) -> None:
    """Set the hub's environment variables; without a URL, offline."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setenv("HF_TOKEN", token or "")
