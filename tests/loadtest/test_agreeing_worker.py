"""The worker of the benchmark of frames: it has a model, and agrees to WebSockets."""

import http.client
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from loadtest.agreeing_worker import MODEL


@pytest.mark.process
def test_it_names_its_model_and_agrees() -> None:
    command = [sys.executable, "-m", "loadtest.agreeing_worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        place = urlsplit(worker.stdout.readline().strip())
        link = http.client.HTTPConnection(place.netloc)
        for path, status in (("/v1/models", 200), ("/health", 200), ("/metrics", 404)):
            link.request("GET", path)
            answer = link.getresponse()
            body = answer.read()
            assert answer.status == status and (path != "/v1/models" or MODEL.encode() in body)
        link.close()
        with socket.create_connection((place.hostname, place.port)) as sock:
            sock.sendall(b"GET /v1/realtime HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
            sock.sendall(b"\x81\x80\0\0\0\0" * 1000)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        worker.stdin.close()
    assert worker.returncode == 0
