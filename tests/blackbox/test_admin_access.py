"""Access to the admin port: pages in a browser, other hosts, and networks of added workers."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import Header, request
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.blackbox.strict_client import DEADLINE_S, Client
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

WORKER = b'{"url":"http://127.0.0.1:9"}'
JSON = (b"Content-Type", b"application/json")


async def ask(bench: Bench, method: str, path: str, hosts: list[bytes], *headers: Header) -> int:
    """Status of a request with these Host headers; a rejection by aiohttp may be of any HTTP version."""
    body = WORKER if method == "POST" else None
    data = request(method, path, body, *headers, JSON, (b"Connection", b"close"))
    lines = b"".join(b"Host: " + host + b"\r\n" for host in hosts)
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.gateway.admin_port)
        writer.write(data.replace(b"Host: gateway\r\n", lines, 1))
        answer = await reader.read()
        writer.close()
    return int(answer.split()[1])


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_rebound_name_or_another_site_neither_reads_nor_writes(processes: int) -> None:
    flags = ("--processes", str(processes), "--admin-allowed-hosts", "gw.example")
    async with running(*flags) as bench:
        evil, own = (b"Origin", b"http://evil.example"), [b"127.0.0.1:%d" % bench.gateway.admin_port]
        refused = [
            ([b"evil.example"], [evil], 403),
            ([b"evil.example"], [], 403),
            ([b"kvgate.evil.example:9400"], [], 403),
            (own, [evil], 403),
            (own, [(b"Origin", b"null")], 403),
            (own, [(b"Sec-Fetch-Site", b"cross-site")], 403),
            ([], [], 400),
            ([b"localhost", b"evil.example"], [], 400),
        ]
        for method, path in (
            ("POST", "/admin/workers"),
            ("DELETE", "/admin/workers/http://127.0.0.1:9"),
            ("GET", "/admin/workers"),
            ("GET", "/metrics"),
            ("GET", "/admin/nothing"),
        ):
            for hosts, headers, status in refused:
                answered = await ask(bench, method, path, hosts, *headers)
                assert answered == status, (method, path, hosts, headers)
        assert (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"] == []
        for path in ("/health", "/metrics"):
            assert await ask(bench, "GET", path, [b"kvgate.ns.svc:9400"]) == 200
        for host in (own[0], b"localhost", b"[::1]:1", b"GW.example"):
            same = (b"Origin", b"http://" + host)
            assert await ask(bench, "GET", "/admin/workers", [host], same) == 200
        assert await ask(bench, "POST", "/admin/workers", own, (b"Sec-Fetch-Site", b"none")) == 201


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_drain_is_logged_with_the_key_that_asked_for_it(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "keys.jsonl"
    key, line = new_key("--tenant", "ops", "--admin")
    file.write_text(line)
    named, forged = f"key '{key[4:16]}'", (b"x-kvgate-admin-caller", b"key 'forged'")
    flags = ("--processes", str(processes), "--admin-key-file", str(file), "--admin-auth", "changes")
    async with running(*flags) as bench:
        worker = FakeWorker()
        await worker.start()
        admin = partial(bench.gateway.admin, body=None)
        body, sent = json.dumps({"url": worker.url}).encode(), (bearer(key), JSON, forged)
        assert (await bench.gateway.admin("POST", "/admin/workers", body, *sent)).status == 201
        await until(lambda: bench.gateway.is_up(worker), "the worker is up")
        path = f"/admin/workers/{worker.id}/drain"
        assert (await bench.gateway.admin("POST", path, b"{}", JSON, bearer("kvg-canary-4711"))).status == 401
        assert (await bench.gateway.admin("POST", path, b"{}", *sent)).status == 200
        await bench.gateway.logged(rf"admin API: POST {path} by {named} from 127.0.0.1: 200$")
        await bench.gateway.logged(rf"admin API: POST {path} by an unknown key from 127.0.0.1: 401, unknown")
        await bench.gateway.logged(rf"worker {worker.url} draining: requested by {named}$")
        (endpoint,) = (await admin("GET", "/admin/workers")).json["endpoints"]
        assert endpoint["workers"][0]["reason"] == f"requested by {named}"
        log = "\n".join(bench.gateway.log)
        assert log.count(f"POST {path} by {named}") == 1, "one line, however many processes there are"
        assert "canary-4711" not in log and key[17:] not in log and "forged" not in log
        await worker.die()


@pytest.mark.parametrize("flags", [(), ("--processes", "2"), ("--admin-auth", "off")])
async def test_an_admin_port_open_to_all_is_rejected_with_the_fix(flags: tuple[str, ...]) -> None:
    command = [*GATEWAY, "serve", "--port", "0", "--admin-port", "0", "--admin-host", "0.0.0.0", *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, env=environ)
    try:
        async with asyncio.timeout(DEADLINE_S):
            words = (await process.communicate())[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 2
    for way in (
        "--admin-host 127.0.0.1",
        "kvgate key new",
        "--admin-key-file",
        "--admin-without-keys probes",
    ):
        assert way in words


@contextlib.asynccontextmanager
async def elsewhere(*flags: str) -> AsyncIterator[Bench]:
    """Gateway at all addresses; `bench` does not read its fleet at the end."""
    gateway = await Gateway.start("--admin-host", "0.0.0.0", *flags)
    try:
        yield Bench(gateway)
    finally:
        code = await gateway.stop()
    assert code == 0 and not gateway.faults(), "\n".join(gateway.log)


def made_key() -> tuple[str, str]:
    """Line of a key file, and its key."""
    command = [*GATEWAY, "key", "new", "--tenant", "ops", "--admin"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.split()[-1]


async def statuses(bench: Bench, *headers: Header) -> dict[str, int]:
    pages = ("/health", "/ready", "/metrics", "/admin/workers", "/admin/keys", "/nothing")
    return {path: (await bench.gateway.admin("GET", path, None, *headers)).status for path in pages}


@pytest.mark.parametrize("processes", [1, 2])
async def test_from_other_hosts_a_key_is_required_to_change_or_reveal(tmp_path: Path, processes: int) -> None:
    keys = tmp_path / "keys"
    line, key = made_key()
    keys.write_text(line)
    async with elsewhere("--admin-key-file", os.fspath(keys), "--processes", str(processes)) as bench:
        shown = (b"Authorization", b"Bearer " + key.encode())
        assert await statuses(bench) == {
            **dict.fromkeys(("/health", "/metrics"), 200),
            "/ready": 503,
            **dict.fromkeys(("/admin/workers", "/admin/keys", "/nothing"), 401),
        }
        assert (await statuses(bench, shown))["/admin/workers"] == 200
        assert (await bench.gateway.admin("POST", "/admin/workers", WORKER)).status == 401
        assert (await bench.gateway.admin("POST", "/admin/explain", b"{}")).status == 401
        assert (await bench.gateway.admin("POST", "/admin/workers", WORKER, JSON, shown)).status == 201
        client = await Client.open(bench.gateway.port)
        assert (await client.ask(request("GET", "/v1/models"))).status == 200  # clients need none
        await client.close()


async def test_without_keys_other_hosts_get_probes_and_metrics_only() -> None:
    async with elsewhere("--admin-without-keys", "probes") as bench:
        assert await statuses(bench) == {
            **dict.fromkeys(("/health", "/metrics"), 200),
            "/ready": 503,
            **dict.fromkeys(("/admin/workers", "/admin/keys", "/nothing"), 403),
        }
        refused = await bench.gateway.admin("POST", "/admin/workers", WORKER)
        assert (refused.status, refused.json["error"]["code"]) == (403, "admin_closed")


# networks of workers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "status", "words"),
    [
        ("http://" + "a" * 64, 400, "a label of 64 characters"),
        ("http://" + ".".join(["a" * 63] * 5), 400, "over 253 characters"),
        ("http://127.0.0.1:9\r\nX-Evil: 1", 400, "U+000D"),
        ("http://127.0.0.1\n:9", 400, "U+000A"),
        ("http://127.0.0.1:9\t", 400, "U+0009"),
        ("http://b\u00fccher.example", 400, "not ASCII"),
        ("http://2852039166/", 400, "is not an IPv4 address"),
        ("http://0xa9.0xfe.0xa9.0xfe/", 400, "is not an IPv4 address"),
        ("http://[::ffff:169.254.169.254]/", 400, "write 169.254.169.254"),
        ("http://169.254.169.254", 403, "metadata service"),
        ("http://100.100.100.200", 403, "metadata service"),
        ("http://192.0.0.192", 403, "metadata service"),
        ("http://[fd00:ec2::254]", 403, "metadata service"),
        ("http://[64:ff9b::a9fe:a9fe]", 403, "metadata service"),
        ("http://metadata.google.internal", 403, "metadata service"),
        ("dns+http://metadata.google.internal.:80", 403, "metadata service"),
        ("unix:/run/docker.sock", 403, "no directory of --worker-networks"),
        ("unix:/run/../run/docker.sock", 400, "absolute path"),
    ],
)
async def test_a_worker_at_a_forbidden_address_is_rejected_with_the_reason(
    bench: Bench, url: str, status: int, words: str
) -> None:
    answer = await bench.gateway.admin("POST", "/admin/workers", json.dumps({"url": url}).encode())
    assert answer.status == status
    assert words in answer.json["error"]["message"]
    assert (await bench.gateway.admin("GET", "/admin/workers")).json["endpoints"] == []


async def test_networks_apply_to_workers_added_at_run_time() -> None:
    async with running("--worker-networks", "127.0.0.0/30") as bench:
        await bench.worker()
        answer = await bench.gateway.admin("POST", "/admin/workers", b'{"url":"http://127.0.0.9:9"}')
        assert (answer.status, "--worker-networks" in answer.json["error"]["message"]) == (403, True)


async def test_a_socket_below_a_configured_directory_may_be_added(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    workers = [await FakeWorker(unix_path=os.fspath(each / "s")).start() for each in (inside, outside)]
    (inside / "link").symlink_to(outside / "s")
    async with running("--worker-networks", os.fspath(inside)) as bench:
        bench.workers += workers
        await bench.gateway.join(workers[0])
        for path in (outside / "s", inside / "link"):
            body = json.dumps({"url": f"unix:{path}"}).encode()
            assert (await bench.gateway.admin("POST", "/admin/workers", body)).status == 403, path
    workers = [await FakeWorker(unix_path=os.fspath(outside / "t")).start()]
    async with running("--worker", workers[0].url) as bench:  # a configured worker needs no directory
        bench.workers += workers
        await until(lambda: bench.gateway.is_up(workers[0]), "joined")
        body = json.dumps({"url": workers[0].url}).encode()
        assert (await bench.gateway.admin("POST", "/admin/workers", body)).status == 200
