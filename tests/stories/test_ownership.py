"""Workers that do not report where they publish, on one host: simulated engines behind a gateway."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import aiohttp
import msgspec
import pytest

from engines.sim import Sim
from engines.vllm import Vllm
from gateway.app import Gateway
from gateway.commands.check_run import check
from gateway.config import config_of
from gateway.core.event_stream import StreamState
from gateway.core.fleet import Member
from gateway.ingest.ownership import NUM_UNSEEN
from tests.support.stories.worker_story import SIM, WorkerStory

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

Ports = tuple[int, int]
Given = Callable[[Sequence[Ports]], Sequence[Ports]]
"""Returns the ports that are configured for workers, of those at which they publish and replay."""


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines report no publisher, as vLLM before 0.30."""
    monkeypatch.setattr(Vllm, "paths", replace(Vllm.paths, event_sources=None))


async def two_engines(stack: AsyncExitStack, given: Given) -> tuple[list[Sim], list[str]]:
    """Start two engines; returns them with their URLs as they are configured."""
    sims = []
    for seed in range(2):
        sims.append(await Sim(msgspec.structs.replace(SIM, seed=seed)).start())
        stack.push_async_callback(sims[-1].stop)
    ports = given([_ports_of(sim) for sim in sims])
    return sims, [
        f"{sim.url}#events_port={events}&replay_port={replays}"
        for sim, (events, replays) in zip(sims, ports, strict=True)
    ]


@asynccontextmanager
async def two_workers(given: Given) -> AsyncIterator[tuple[WorkerStory, list[Member]]]:
    async with AsyncExitStack() as stack:
        sims, urls = await two_engines(stack, given)
        gateway = Gateway(
            config_of(
                worker=urls,
                port=0,
                admin_port=0,
                expose_headers=True,
                policy="round_robin",
                probe_interval_s=0.2,
            )
        )
        await gateway.start()
        stack.push_async_callback(gateway.stop, 0.0)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        s = WorkerStory(gateway, sims, session)
        await s.until(lambda: sum(member.is_up for member in gateway.fleet) == 2)
        names = [sim.url.removeprefix("http://") for sim in sims]
        members = {str(member.worker.id): member for member in gateway.fleet}
        yield s, [members[name] for name in names]


def _ports_of(sim: Sim) -> Ports:
    publisher = sim.ranks[0].publisher
    assert publisher is not None and publisher.replay_port is not None
    return publisher.events_port, publisher.replay_port


async def ask_both(s: WorkerStory, times: int) -> None:
    """Send prompts that no other shares, in turn to each worker."""
    rng = random.Random(s.answered.total())
    for _ in range(2 * times):
        assert await s.ask(1, prompt=[rng.randrange(3, 900) for _ in range(100)])


async def ask_until_disowned(s: WorkerStory, caplog: pytest.LogCaptureFixture, num: int = 1) -> None:
    """Send prompts until the events of `num` workers are not applied; those sent before a stream is read do
    not count."""

    def is_over() -> bool:
        return sum("they belong to another worker" in line for line in caplog.messages) == num

    for _ in range(5 * NUM_UNSEEN):
        if not is_over():
            await ask_both(s, 1)
    await s.until(is_over)


async def test_each_worker_has_ports_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async with two_workers(lambda ports: ports) as (s, members):
        await s.until(lambda: all(member.stream is StreamState.UNPROVEN for member in members))
        view = await s.worker(s.sims[0])
        assert view["stream"] == "unproven"
        assert view["blind"]["reason"].startswith("owner not proven yet: events come from a port")
        await ask_both(s, 1)
        await s.until(lambda: all(member.stream is StreamState.EXACT for member in members))
        assert (await s.worker(s.sims[1]))["blind"] is None
    assert not [line for line in caplog.messages if "KV events" in line and "another" in line]


async def test_workers_with_each_others_ports_are_not_exact(caplog: pytest.LogCaptureFixture) -> None:
    async with two_workers(lambda ports: ports[::-1]) as (s, members):
        await ask_until_disowned(s, caplog, 2)
        assert all(member.stream is StreamState.BLIND for member in members)
        assert [s.gateway.index.num_blocks(member.worker.id) for member in members] == [0, 0]
        await ask_both(s, 1)
        assert [s.gateway.index.num_blocks(member.worker.id) for member in members] == [0, 0]
        assert [(await s.worker(sim))["stream"] for sim in s.sims] == ["blind", "blind"]


@pytest.mark.parametrize("owner", [0, 1])
async def test_one_publisher_is_read_for_one_worker_alone(
    owner: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_workers(lambda ports: [ports[owner], ports[owner]]) as (s, members):
        await s.until(lambda: any("is read for worker" in line for line in caplog.messages))
        (line,) = [line for line in caplog.messages if "is read for worker" in line]
        assert all(member.worker.id in line for member in members)
        read = [member for member in members if member.stream is not None]
        assert len(read) == 1
        if read[0] is members[owner]:
            await ask_both(s, NUM_UNSEEN + 1)
            await s.until(lambda: read[0].stream is StreamState.EXACT)
        else:
            await ask_until_disowned(s, caplog)
            assert read[0].stream is StreamState.BLIND


@pytest.mark.parametrize("is_crossed", [False, True])
async def test_check_looks_for_a_prompt_of_its_own(
    is_crossed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncExitStack() as stack:
        sims, urls = await two_engines(stack, lambda ports: ports[::-1] if is_crossed else ports)
        await check(config_of(worker=urls))
        out = capsys.readouterr().out
        for sim in sims:
            mode = "approximate" if is_crossed else "exact and verified"
            assert f"{sim.url.removeprefix('http://')}: {mode}  (" in out
        assert out.count("a prompt that it computed was not in the KV events at") == 2 * is_crossed


async def test_check_says_where_nothing_publishes(capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncExitStack() as stack:
        sims, _ = await two_engines(stack, lambda ports: ports)
        await check(config_of(worker=[f"{sims[0].url}#events_port=9"], probe_timeout_s=0.5))
    obstacle = "it reports no port of KV events, and the default port does not work: no KV-event publisher"
    assert obstacle in capsys.readouterr().out


@pytest.mark.parametrize("owner", [0, 1])
async def test_a_publisher_is_read_for_the_worker_that_is_left(
    owner: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A second worker gets the events when the first leaves, or when they turn out not to be the first's."""
    async with two_workers(lambda ports: [ports[owner], ports[owner]]) as (s, members):
        await s.until(lambda: any(member.stream is not None for member in members))
        (first,) = [member for member in members if member.stream is not None]
        (second,) = [member for member in members if member is not first]
        if first is members[owner]:
            assert s.gateway.roster.drop(first.worker.url)
        else:
            await ask_until_disowned(s, caplog)
        await s.until(lambda: second.stream in (StreamState.UNPROVEN, StreamState.EXACT))
        await ask_both(s, 1)
        if second is members[owner]:
            await s.until(lambda: second.stream is StreamState.EXACT)
        else:
            await s.until(lambda: second.stream is StreamState.BLIND)
