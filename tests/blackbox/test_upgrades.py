"""Takeover by a new gateway: no client's connection is lost, in any state."""

import asyncio
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.support.blackbox.http1_bytes import DONE, completion, event, post, request
from tests.support.blackbox.real_gateway import Gateway
from tests.support.blackbox.scripted_worker import hang
from tests.support.blackbox.several_processes import begin_stream, end_stream
from tests.support.blackbox.strict_client import Client
from tests.support.blackbox.upgrades import ENDS, Generations, Load, generations, serve_all
from tests.support.patience import until

pytestmark = pytest.mark.interpreted

NUM_UPGRADES = 20 if os.environ.get("FULL") else 8
LIVES = 3
"""Upgrades through which a stream of the load lives."""


async def test_upgrades_under_load_lose_no_request(tmp_path: Path) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin()
        await bench.worker(script=serve_all)
        load = Load(upgrades.now)
        async with load.of(load.short_lived, *[load.kept] * 4, load.pausing, load.pipelining, load.scraping):
            await upgrade_under(load, upgrades)
        assert load.num_announced_ends > NUM_UPGRADES
        for gateway in upgrades.all[:-1]:
            assert await gateway.exited() == 0
        assert await upgrades.now.total("kvgate_worker_up") == 1, (
            "a worker that joined at run time goes along"
        )


async def upgrade_under(load: Load, upgrades: Generations) -> None:
    """Upgrade again and again, with streams that live through several gateways, one through all."""
    streams: list[tuple[bytes, Client]] = []

    async def open_stream(name: bytes) -> None:
        client = await upgrades.bench.client()
        streams.append((name, client))
        await client.send(post(completion(stream=True), (b"X-Call", name)))
        await client.head()
        assert await client.event() == event("a")

    await open_stream(b"through all")
    for number in range(NUM_UPGRADES):
        await open_stream(b"%d" % number)
        before = load.num_answers
        await upgrades.upgrade("--processes", str(1 + number % 2))
        if len(streams) > LIVES:
            await _end(*streams.pop(1))
        await until(lambda n=before: load.num_answers > n + 20, "the load goes on")  # type: ignore[misc]
    while streams:
        await _end(*streams.pop())


async def _end(name: bytes, client: Client) -> None:
    ENDS.pop(name).set()
    await end_stream(client)
    await client.close()


async def test_the_new_gateway_answers_while_the_old_one_finishes(tmp_path: Path) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin()
        await bench.worker(script=serve_all)
        idle, streaming, behind = [await bench.client() for _ in range(3)]
        assert (await idle.ask(request("GET", "/health"))).status == 200
        await streaming.send(post(completion(stream=True), (b"X-Call", b"s")))
        await streaming.head()
        await behind.send(post(completion(stream=True), (b"X-Call", b"t")) + post(completion()))
        await behind.head()
        old = await upgrades.upgrade()
        assert old.process.returncode is None
        answer = await idle.ask(request("GET", "/ready"))  # in the old gateway, which others would call ready
        assert (answer.status, answer.value(b"connection")) == (200, b"close")
        await idle.ends()
        assert (await bench.ask(post(completion()))).status == 200
        assert (await bench.gateway.metrics())['kvgate_responses_total{code="200"}'] == 1
        for name, client in ((b"s", streaming), (b"t", behind)):
            ENDS.pop(name).set()
            assert [await client.event() for _ in range(3)] == [event("a"), event("b"), DONE]
            assert await client.piece() == b""
        answer = await behind.answer()  # queued in the old gateway before it left
        assert (answer.status, answer.value(b"connection")) == (200, b"close")
        await behind.ends()
        assert (await streaming.ask(request("GET", "/health"))).value(b"connection") == b"close"
        assert await old.exited() == 0


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
async def test_a_gateway_that_fails_to_start_leaves_the_running_one_unchanged(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin(*flags)
        await bench.worker()
        with pytest.raises(AssertionError, match="/nowhere"):
            await Gateway.start(*upgrades.flags, *flags, "--tokenizer", "/nowhere")
        await upgrades.now.logged("ended before taking over; continuing")
        assert (await bench.ask(post(completion()))).status == 200
        await upgrades.upgrade(*flags)
        assert (await bench.ask(post(completion()))).status == 200


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
async def test_requests_not_finished_in_time_are_cut_and_logged(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin(*flags, "KVGATE_TAKEOVER_DRAIN_S=0.3")
        worker = await bench.worker(script=hang)
        client = await bench.client()
        await client.send(post(completion(), (b"X-Request-Id", b"too-long")))
        await worker.called()
        old = await upgrades.upgrade()
        await client.is_cut()
        assert await old.exited() == 0
        assert sum("too-long" in line for line in old.log) == 1


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
async def test_a_leaving_gateway_can_be_stopped(tmp_path: Path, flags: tuple[str, ...]) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin(*flags, "--drain-timeout-s", "0.1")
        await bench.worker(script=serve_all)
        client = await bench.client()
        await begin_stream(client)
        old = await upgrades.upgrade()
        old.process.send_signal(signal.SIGTERM)
        await client.is_cut()
        assert await old.exited() == 0


async def test_the_takeover_socket_is_private_and_removed_with_the_last_gateway(tmp_path: Path) -> None:
    path = tmp_path / "takeover"
    async with generations(path) as upgrades:
        await upgrades.begin()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await upgrades.upgrade()
        assert path.exists()
    assert not path.exists()


async def test_the_socket_of_a_killed_gateway_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "takeover"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with generations(path) as upgrades:
        await upgrades.begin()
        await upgrades.upgrade()


async def test_a_file_at_the_socket_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "takeover"
    path.write_text("mine")
    with pytest.raises(AssertionError, match="is not a socket"):
        await Gateway.start("--takeover-socket", str(path))
    assert path.read_text() == "mine"


async def test_another_port_is_bound(tmp_path: Path) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        bench = await upgrades.begin()
        old = upgrades.now
        new = await Gateway.start(*upgrades.flags, "--host", "localhost")
        upgrades.all.append(new)
        bench.gateway = new
        assert new.port != old.port and new.admin_port == old.admin_port
        assert await old.exited() == 0
        with pytest.raises(OSError):
            await Client.open(old.port)


async def test_two_gateways_cannot_take_over_at_once(tmp_path: Path) -> None:
    async with generations(tmp_path / "takeover") as upgrades:
        await upgrades.begin()
        listening = socket.create_server(("127.0.0.1", 0))  # accepts, and sends no answer
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        first = asyncio.get_running_loop().create_task(
            Gateway.start(*upgrades.flags, "--worker", url, "--probe-timeout-s", "3")
        )
        await upgrades.now.logged("begins to take over")
        with pytest.raises(AssertionError, match="is taking over; retry"):
            await Gateway.start(*upgrades.flags)
        upgrades.all.append(await first)
        upgrades.bench.gateway = upgrades.now
        listening.close()
