"""Workers behind https and behind Unix sockets: trusted ones, and the errors of others."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, lasting, running, visiting
from tests.support.blackbox.http1_bytes import DONE, SSE_HEAD, chunked, completion, event, post, wire
from tests.support.blackbox.real_gateway import Gateway, refusal
from tests.support.blackbox.scripted_worker import Call, FakeWorker, Script
from tests.support.blackbox.strict_client import DEADLINE_S
from tests.support.certificates import Authority
from tests.support.gateway_process import split
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

QUICK = ("--probe-interval-s", "0.2", "KVGATE_TOKENIZER_TIMEOUT_S=10")
"""A busy machine takes longer for a worker's /tokenize than prompts are given."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trusting(authority: Authority) -> AsyncIterator[Gateway]:
    async with lasting("--worker-ca-file", authority.file, *QUICK) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def bench(trusting: Gateway) -> AsyncIterator[Bench]:
    async with visiting(trusting) as bench:
        yield bench


async def echo(call: Call) -> None:
    await call.send(wire(200, call.body))


async def stream(call: Call) -> None:
    await call.send(SSE_HEAD + chunked(event("a"), event("b"), DONE))


async def check(*flags: str) -> tuple[int | None, str]:
    given, environment = split(flags)
    process = await asyncio.create_subprocess_exec(
        *(*GATEWAY, "check", *given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(DEADLINE_S):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


# trusted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [echo, stream])
async def test_a_worker_of_the_trusted_authority_joins(
    bench: Bench, authority: Authority, script: Script
) -> None:
    """Probes, the prompt's tokens and the request itself; the connection is used again."""
    worker = await bench.worker(script=script, tls=authority.issue().context())
    tokenized, failed = 'kvgate_prompts_total{source="worker"}', "kvgate_prompt_tokenization_failures_total"
    before = [await bench.gateway.total(name) for name in (tokenized, failed)]
    for _ in range(3):
        answer = await bench.ask(post(completion("text")))
        assert answer.status == 200
    assert len(worker.calls) == 3
    assert len(worker.forwarded_links()) == 1
    assert [await bench.gateway.total(name) for name in (tokenized, failed)] == [before[0] + 3, before[1]]


async def test_large_bodies_pass_both_ways(bench: Bench, authority: Authority) -> None:
    await bench.worker(script=echo, tls=authority.issue().context())
    large = completion("x" * (4 << 20))
    assert (await bench.ask(post(large))).body == large


async def test_a_worker_that_requires_a_client_certificate_gets_one(authority: Authority) -> None:
    ours = authority.issue("gateway")
    shown = ("--worker-cert-file", ours.cert, f"KVGATE_WORKER_CERT_KEY_FILE={ours.key}")
    async with running("--worker-ca-file", authority.file, *shown, *QUICK) as bench:
        worker = await bench.worker(script=echo, tls=authority.issue().context(clients_of=authority))
        assert (await bench.ask(post(completion()))).body == completion()
        code, printed = await check("--worker", worker.url, "--worker-ca-file", authority.file, *shown)
        assert (code, "not reached" in printed) == (0, False), printed


# not trusted -----------------------------------------------------------------------------------


async def reason(bench: Bench, worker: FakeWorker) -> str:
    """Reason why it does not join, as an operator sees it."""
    bench.workers.append(worker)
    await bench.gateway.admin("POST", "/admin/workers", b'{"url":"%b"}' % worker.url.encode())

    async def has_reason() -> bool:
        endpoint = await bench.gateway.endpoint(worker)
        return bool(endpoint and endpoint["last_error"])

    await until(has_reason, "a reason")
    endpoint = await bench.gateway.endpoint(worker)
    assert endpoint and endpoint["state"] == "joining"
    reported = str(endpoint["last_error"])
    await bench.gateway.logged(rf"waiting for worker {worker.url}: .*{reported[-20:]}")
    return reported.removeprefix(f"{worker.url}/health: ")


async def test_a_worker_that_does_not_join_has_a_reason(
    bench: Bench, authority: Authority, tmp_path: Path
) -> None:
    stranger = await FakeWorker(tls=Authority(tmp_path).issue().context()).start()
    assert await reason(bench, stranger) == (
        "its certificate is not trusted: unable to get local issuer certificate; "
        "is its CA in --worker-ca-file?"
    )
    expired = await FakeWorker(tls=authority.issue(is_expired=True).context()).start()
    assert await reason(bench, expired) == "its certificate is not trusted: certificate has expired"
    elsewhere = await FakeWorker(tls=authority.issue("elsewhere.example").context()).start()
    assert "certificate is not valid for '127.0.0.1'" in await reason(bench, elsewhere)


async def test_check_names_the_reason(authority: Authority) -> None:
    worker = await FakeWorker(tls=authority.issue().context()).start()
    code, printed = await check("--worker", worker.url)
    assert code == 1
    assert "its certificate is not trusted: unable to get local issuer certificate" in printed
    await worker.die()


async def replace_certificate(worker: FakeWorker, tls: ssl.SSLContext) -> None:
    """Stop the worker and start it with another certificate."""
    await worker.die()
    worker.tls = tls
    await worker.start()


@pytest.mark.parametrize("is_expired", [True, False])
async def test_a_worker_no_longer_trusted_costs_no_request(
    authority: Authority, tmp_path: Path, is_expired: bool
) -> None:
    """Only the request finds out: it is retried elsewhere, and the log has the reason."""
    flags = ("--worker-ca-file", authority.file, "--probe-interval-s", "600", "--policy", "round_robin")
    async with running(*flags) as bench:
        good = await bench.worker(script=echo, tls=authority.issue().context())
        bad = await bench.worker(script=echo, tls=authority.issue().context())
        issuer = authority if is_expired else Authority(tmp_path)
        await replace_certificate(bad, issuer.issue(is_expired=is_expired).context())
        for i in range(4):
            assert (await bench.ask(post(completion([i])))).status == 200
        assert (len(good.calls), len(bad.calls)) == (4, 0)
        reason = "certificate has expired" if is_expired else "unable to get local issuer certificate"
        await bench.gateway.logged(
            rf"worker {bad.id} failed \(cannot connect: its certificate is not trusted: {reason}"
        )
        assert await bench.gateway.total("kvgate_worker_failed_requests_total") == 1
        assert not await bench.gateway.is_up(bad)

        async def has_reason() -> bool:
            endpoint = await bench.gateway.endpoint(bad)
            return bool(endpoint and reason in str(endpoint["last_error"]))

        await until(has_reason, "the reason")


Greet = Callable[[socket.socket], None]


@contextlib.asynccontextmanager
async def greeting(bench: Bench, greet: Greet) -> AsyncIterator[str]:
    """URL of an https worker behind which each connection gets `greet`.

    Its sockets are blocking: its TLS sends alerts where that of event loops only hangs up.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                if is_over:
                    return
                greet(connection)

    is_over = False
    serving = asyncio.get_running_loop().run_in_executor(None, serve)
    url = f"https://127.0.0.1:{port}"
    await bench.gateway.admin("POST", "/admin/workers", b'{"url":"%b"}' % url.encode())
    try:
        yield url
    finally:
        await bench.gateway.admin("DELETE", f"/admin/workers/{url}")
        is_over = True
        with socket.create_connection(("127.0.0.1", port)):
            await serving
        listening.close()


async def test_a_worker_without_tls_has_a_reason(bench: Bench) -> None:
    def greet(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(wire(400))

    async with greeting(bench, greet) as url:
        reported = "TLS: it does not speak TLS on this port"
        await bench.gateway.logged(rf"waiting for worker {url}: {url}/health: {reported}$")


async def test_a_missing_client_certificate_has_a_reason(bench: Bench, authority: Authority) -> None:
    context = authority.issue().context(clients_of=authority)

    def greet(connection: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            context.wrap_socket(connection, server_side=True).close()

    async with greeting(bench, greet) as url:
        reported = "TLS: it requires a client certificate, see --worker-cert-file"
        await bench.gateway.logged(rf"waiting for worker {url}: {url}/health: .*{reported}$")


async def test_unusable_files_are_rejected(authority: Authority, tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    assert f"worker_ca_file: {missing} cannot be read" in await refusal("--worker-ca-file", missing)
    first, second = authority.issue(), authority.issue()
    reported = await refusal("--worker-cert-file", first.cert, f"KVGATE_WORKER_CERT_KEY_FILE={second.key}")
    assert f"worker_cert_key_file: {second.key} is not the key of {first.cert}" in reported


async def test_a_new_authority_is_loaded(authority: Authority, tmp_path: Path) -> None:
    """Old and new authority side by side, as operators change them; then the new one alone."""
    new, file = Authority(tmp_path / "new"), tmp_path / "ca.pem"
    file.write_bytes(Path(authority.file).read_bytes())
    async with running("--worker-ca-file", str(file), *QUICK) as bench:
        before = await bench.worker(script=echo, tls=authority.issue().context())
        file.write_bytes(Path(new.file).read_bytes())
        await bench.gateway.logged("TLS to workers reloaded")
        await bench.worker("other", script=echo, tls=new.issue().context())
        assert (await bench.ask(post(completion(model="other")))).status == 200
        await replace_certificate(before, authority.issue().context())
        await until(lambda: _is_down(bench, before), "the old authority is not trusted any more")


async def _is_down(bench: Bench, worker: FakeWorker) -> bool:
    return not await bench.gateway.is_up(worker)


# Unix sockets ----------------------------------------------------------------------------------


async def test_a_worker_behind_a_unix_socket_serves_requests(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("s")
    async with running("--worker-networks", str(directory), *QUICK) as bench:
        await _serves_behind_a_socket(bench, str(directory / "w"))


async def _serves_behind_a_socket(bench: Bench, path: str) -> None:
    worker = await bench.worker(script=echo, unix_path=path)
    for _ in range(2):
        assert (await bench.ask(post(completion("text")))).body == completion("text")
    assert worker.calls[0].value(b"host") == b"localhost"
    assert len(worker.forwarded_links()) == 1
    endpoint = await bench.gateway.endpoint(worker)
    assert endpoint and endpoint["workers"][0]["id"] == worker.id == f"unix:{path}"
    code, printed = await check("--worker", worker.url)
    assert (code, f"unix:{path}: " in printed) == (0, True), printed
    await worker.die()
    Path(path).unlink(missing_ok=True)  # since Python 3.13 asyncio's server has done it
    await until(lambda: _is_down(bench, worker), "down")
    assert (await bench.ask(post(completion()))).status == 503
    await worker.start()
    await until(lambda: bench.gateway.is_up(worker), "up again")
    assert (await bench.ask(post(completion()))).status == 200


# key and name of one worker --------------------------------------------------------------------------


async def test_a_worker_is_verified_by_its_configured_name(authority: Authority, tmp_path: Path) -> None:
    """Worker with a certificate for a name and a URL with an address; it has its own key."""
    worker = await FakeWorker(tls=authority.issue("engine.internal").context()).start()
    (tmp_path / "key").write_text("sk-engine\n")
    file = tmp_path / "kvgate.toml"
    table = f'server_name = "engine.internal"\nkey_file = "{tmp_path / "key"}"\nengine = "vllm"\n'
    file.write_text(f'[fleet]\nworker = ["{worker.url}"]\n[workers."{worker.url}"]\n{table}')
    async with running("--config", str(file), "--worker-ca-file", authority.file, *QUICK) as bench:
        bench.workers.append(worker)
        await until(lambda: bench.gateway.is_up(worker), "joined")
        theirs = ((b"Authorization", b"Bearer client"), (b"X-Api-Key", b"client"))
        assert (await bench.ask(post(completion(), *theirs))).status == 200
        (call,) = worker.calls
        port = worker.url.rpartition(":")[2].encode()
        assert call.values(b"authorization") == [b"Bearer sk-engine"]
        assert (call.values(b"x-api-key"), call.value(b"host")) == ([], b"engine.internal:" + port)
        assert {probe.value(b"authorization") for probe in worker.probes} == {b"Bearer sk-engine"}


async def test_a_name_is_verified_at_each_of_its_addresses(authority: Authority) -> None:
    """`localhost` may have two addresses, of which one answers; its certificate is for the name only."""
    worker = await FakeWorker(tls=authority.issue("localhost").context()).start()
    port = worker.url.rpartition(":")[2]
    name = f"dns+https://localhost:{port}"
    async with running("--worker", name, "--worker-ca-file", authority.file, *QUICK) as bench:
        bench.workers.append(worker)
        await until(lambda: bench.gateway.is_up(worker), "joined")
        assert (await bench.ask(post(completion()))).status == 200
        reported = (await bench.gateway.admin("GET", "/admin/workers")).json
        assert worker.url in reported["sources"][0]["members"]
        assert (await bench.gateway.admin("DELETE", f"/admin/workers/{name}")).status == 200
        assert (await bench.ask(post(completion()))).status == 503
