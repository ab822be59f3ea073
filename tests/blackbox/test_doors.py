"""TLS and Unix sockets with several processes, and through upgrades."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import completion, post, request
from tests.support.blackbox.real_gateway import Gateway, refusal
from tests.support.blackbox.several_processes import TWO, Streams, begin_stream, end_stream, on_each
from tests.support.blackbox.strict_client import Client
from tests.support.blackbox.upgrades import ENDS, Load, generations, serve_all
from tests.support.certificates import Authority, Mounted, Pair, serial
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

NUM_UPGRADES = 4
Open = Callable[[], Coroutine[Any, Any, Client]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("s") / "g")


def flags(pair: Pair) -> tuple[str, ...]:
    return "--tls-cert-file", pair.cert, "--tls-key-file", pair.key


async def unix_client(bench: Bench, path: str) -> Client:
    client = await Client.open_unix(path)
    bench.clients.append(client)
    return client


# several processes -----------------------------------------------------------------------------


async def test_each_process_shakes_hands_with_the_newest_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    mounted = Mounted(tmp_path / "secret", authority.issue())
    async with running(*TWO, *flags(mounted), tls=authority.context()) as bench:
        assert (await bench.gateway.logged(r"listening on (\w+)://"))[1] == "https"
        worker = await bench.worker(script=(script := Streams()))
        streaming = await on_each(bench, 2)
        for client in streaming:
            await begin_stream(client)
        pair = authority.issue()
        mounted.swap(pair)

        async def both_show_it() -> bool:
            """Connect as often as there are processes; each connection goes to the process with the
            fewest.
            """
            clients = await on_each(bench, 2)
            shown = {client.certificate() for client in clients}
            for client in clients:
                await client.close()
            return shown == {serial(pair.cert)}

        await until(both_show_it, "the new certificate")
        await until(
            lambda: _sum(bench, 'kvgate_tls_certificate_reloads_total{result="loaded"}', 2),
            "reloaded by both",
        )
        script.may_end.set()
        for client in streaming:
            await end_stream(client)
        assert len(worker.calls) == 2
        metrics = await bench.gateway.metrics()
        assert [metrics[f'kvgate_process_responses_total{{process="{row}"}}'] for row in (0, 1)] == [1, 1]


async def _sum(bench: Bench, name: str, num: float) -> bool:
    return (await bench.gateway.metrics()).get(name) == num


async def test_failed_handshakes_do_not_count_as_open(authority: Authority) -> None:
    """The process with them would be thought busier than it is, and stay idle."""
    async with running(*TWO, *flags(authority.issue()), tls=authority.context()) as bench:
        await bench.worker()
        for _ in range(9):  # an odd number, so that one process had more
            plain = await Client.open(bench.gateway.port)
            await plain.send(request("GET", "/health"))
            await plain.is_cut()
            await plain.close()
        for client in await on_each(bench, 8):
            assert (await client.ask(post(completion()))).status == 200
        metrics = await bench.gateway.metrics()
        assert [metrics[f'kvgate_process_responses_total{{process="{row}"}}'] for row in (0, 1)] == [4, 4]


async def test_an_unusable_certificate_is_reported_once(authority: Authority) -> None:
    pair, other = authority.issue(), authority.issue()
    error = await refusal(*TWO, "--tls-cert-file", pair.cert, "--tls-key-file", other.key)
    assert error.count(f"tls_key_file: {other.key} is not the key of {pair.cert}") == 1


async def test_a_unix_socket_and_tls_before_two_processes(authority: Authority, path: str) -> None:
    async with running(
        *TWO, "--unix-socket", path, *flags(authority.issue()), tls=authority.context()
    ) as bench:
        await bench.worker()
        await bench.gateway.logged(f"listening on unix:{path}$")
        for client in [await unix_client(bench, path) for _ in range(4)]:
            assert (await client.ask(post(completion()))).status == 200
        assert (await bench.ask(post(completion()))).status == 200
        metrics = await bench.gateway.metrics()
        assert sorted(metrics[f'kvgate_process_responses_total{{process="{row}"}}'] for row in (0, 1)) == [
            2,
            3,
        ]
        assert await bench.gateway.stop() == 0
        assert not os.path.exists(path)


async def test_tokenizers_of_two_processes_are_merged() -> None:
    async with running(*TWO) as bench:
        await bench.worker()
        merged = (await bench.gateway.admin("GET", "/admin/tokenizer")).json
        assert [each["model"] for each in merged["models"]] == ["m"]
        assert merged["conversations"]["entries"] == 0
        assert merged["conversations"]["max_bytes"] > 0


async def test_pauses_of_each_process_are_exposed() -> None:
    async with running(*TWO) as bench:

        async def are_counted() -> bool:
            metrics = await bench.gateway.metrics()
            assert "kvgate_gc_pause_max_seconds" in metrics
            return metrics["kvgate_event_loop_lag_seconds_count"] > 2

        await until(are_counted, "pauses are counted")
        for once in ("kvgate: kvgate ", "open files limited"):
            assert len([line for line in bench.gateway.log if once in line]) == 1


# upgrades --------------------------------------------------------------------------------------


class Doors(Load):
    """Clients over TLS and over the Unix socket, one connection after the other."""

    def __init__(self, bench: Bench, path: str) -> None:
        super().__init__(bench.gateway)
        self._tls, self._path = bench.tls, path

    async def secure(self) -> None:
        await self._again_and_again(lambda: Client.open(self.port, tls=self._tls))

    async def unix(self) -> None:
        await self._again_and_again(lambda: Client.open_unix(self._path))

    async def _again_and_again(self, open_client: Open) -> None:
        while not self._is_over:
            client = await open_client()
            for _ in range(2):
                answer = await client.ask(post(completion()))
                self._check(answer)
                if answer.value(b"connection") == b"close":
                    break
            await client.close()


async def test_upgrades_lose_no_client_of_tls_or_the_unix_socket(
    authority: Authority, tmp_path: Path, path: str
) -> None:
    doors = (*flags(authority.issue()), "--unix-socket", path)
    async with generations(Path(path + "t"), *doors, tls=authority.context()) as upgrades:
        bench = await upgrades.begin()
        await bench.worker(script=serve_all)
        load = Doors(bench, path)
        async with load.of(*[load.secure] * 3, *[load.unix] * 2):
            streaming = await unix_client(bench, path)
            await streaming.send(post(completion(stream=True), (b"X-Call", b"unix")))
            await streaming.head()
            await streaming.event()
            for number in range(NUM_UPGRADES):
                before = load.num_answers
                await upgrades.upgrade("--processes", str(1 + (number + 1) % 2))
                await until(lambda n=before: load.num_answers > n + 10, "the load goes on")  # type: ignore[misc]
            ENDS.pop(b"unix").set()
            await end_stream(streaming)
            await streaming.close()
        for gateway in upgrades.all[:-1]:
            assert await gateway.exited() == 0
        assert os.path.exists(path), "an old gateway does not take the new one's file away"
        client = await unix_client(bench, path)
        assert (await client.ask(post(completion()))).status == 200
    assert not os.path.exists(path) and not os.path.exists(path + "t")


async def test_a_unix_socket_that_is_no_longer_configured_is_removed(path: str) -> None:
    async with generations(Path(path + "t")) as upgrades:
        bench = await upgrades.begin("--unix-socket", path)
        await bench.worker()
        await upgrades.upgrade()
        await until(lambda: not os.path.exists(path), "its file is removed")
        await upgrades.upgrade("--unix-socket", path, "KVGATE_UNIX_SOCKET_MODE=660")
        await upgrades.upgrade("--unix-socket", path, "KVGATE_UNIX_SOCKET_MODE=666")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
        client = await unix_client(bench, path)
        assert (await client.ask(post(completion()))).status == 200


@pytest.mark.parametrize("processes", [(), TWO])
async def test_a_failed_takeover_keeps_the_unix_socket(path: str, processes: tuple[str, ...]) -> None:
    async with generations(Path(path + "t"), "--unix-socket", path) as upgrades:
        bench = await upgrades.begin(*processes)
        await bench.worker()
        error = await refusal(*upgrades.flags, *processes, "--tls-cert-file", "/nowhere")
        assert error.count("tls_cert_file: /nowhere cannot be read") == 1
        client = await unix_client(bench, path)
        assert (await client.ask(post(completion()))).status == 200


async def test_a_stop_during_a_takeover_leaves_the_files_to_the_successor(path: str) -> None:
    async with generations(Path(path + "t"), "--unix-socket", path) as upgrades:
        await upgrades.begin()
        old = upgrades.now
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and sends no answer
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            heir = asyncio.get_running_loop().create_task(
                Gateway.start(*upgrades.flags, "--worker", url, "--probe-timeout-s", "3")
            )
            await old.logged("begins to take over")
            assert await old.stop() == 0
            upgrades.all.append(await heir)
        upgrades.bench.gateway = upgrades.now
        client = await unix_client(upgrades.bench, path)
        assert (await client.ask(request("GET", "/health"))).status == 200
        assert os.path.exists(path + "t")
