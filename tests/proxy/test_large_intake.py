"""Large bodies on their way to their exchange: handed over once parsed, or released."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from gateway.core.errors import GatewayError, InvalidRequest, NoWorker
from gateway.core.outcome import CLIENT_GONE
from gateway.core.request import InferenceRequest
from gateway.http.messages import HttpRequest
from gateway.observability.metrics import Metrics
from gateway.observability.request_end import STOPPED, RequestEnd
from gateway.proxy import large_intake
from gateway.proxy.context import Context
from gateway.proxy.large_intake import LargeIntake
from gateway.runtime.tasks import Tasks
from gateway.server.responder import Responder


class Begun:
    """Exchange that notes the events of its client."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def client_gone(self) -> None:
        self.events.append("gone")

    def client_full(self) -> None:
        self.events.append("full")

    def client_free(self) -> None:
        self.events.append("free")


class IntakeWorld:
    """Context that reads when `may_read` is set, and a responder."""

    def __init__(self) -> None:
        self.loop, self.tasks, self.metrics = asyncio.get_running_loop(), Tasks(), Metrics()
        self.intakes: set[LargeIntake] = set()
        self.ends: list[RequestEnd] = []
        self.end_observers = [self.ends.append]
        self.refused: list[GatewayError] = []
        self.let_go_of: list[HttpRequest] = []
        self.may_read = asyncio.Event()
        self.error: Exception | None = None
        self.begun = Begun()
        self.num_aborted = 0
        self.http = HttpRequest("POST", b"/v1/completions", [], b"{}")
        self.intake = LargeIntake(
            cast(Context, self),
            self.http,
            cast(Responder, self),
            refuse=self._refuse,
            hand_on=self.handle_parsed,
            intakes=self.intakes,
        )

    def _refuse(self, http: HttpRequest, responder: Responder, error: GatewayError) -> None:
        self.refused.append(error)

    async def read(self, is_over: Callable[[], bool]) -> InferenceRequest | None:
        await self.may_read.wait()
        if self.error is not None:
            raise self.error
        return None if is_over() else cast(InferenceRequest, self)

    def handle_parsed(self, http: HttpRequest, responder: Responder, request: InferenceRequest) -> Begun:
        return self.begun

    def let_go(self, http: HttpRequest) -> None:
        self.let_go_of.append(http)

    def abort(self) -> None:
        self.num_aborted += 1

    async def end(self) -> None:
        self.may_read.set()
        await asyncio.gather(*self.tasks._tasks)
        assert not self.intakes


@pytest.fixture(autouse=True)
def _reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(context: Any, http: HttpRequest, is_over: Callable[[], bool]) -> InferenceRequest | None:
        return await cast(IntakeWorld, context).read(is_over)

    monkeypatch.setattr(large_intake, "large_request_of", read)


async def test_client_events_reach_the_exchange() -> None:
    world = IntakeWorld()
    world.intake.client_full()
    world.intake.client_free()
    await world.end()
    world.intake.client_full()
    world.intake.client_free()
    world.intake.client_gone()
    world.intake.cancel()
    assert world.begun.events == ["full", "free", "gone"]
    assert (world.refused, world.let_go_of, world.num_aborted) == ([], [], 0)


@pytest.mark.parametrize("error", [InvalidRequest("wrong"), NoWorker("none", retry_after_s=1)])
async def test_an_invalid_body_is_rejected(error: GatewayError) -> None:
    world = IntakeWorld()
    world.error = error
    await world.end()
    assert (world.refused, world.let_go_of) == ([error], [world.http])


async def test_a_bug_is_answered() -> None:
    world = IntakeWorld()
    world.error = KeyError("bug")
    await world.end()
    (error,) = world.refused
    assert (error.status, world.let_go_of) == (500, [world.http])


async def test_a_client_that_disconnects_meanwhile_is_counted_and_its_body_released() -> None:
    world = IntakeWorld()
    world.intake.client_gone()
    world.intake.client_gone()
    assert world.let_go_of == []  # the thread may still read it
    await world.end()
    assert (world.metrics.num_client_disconnects, world.metrics.responses[CLIENT_GONE]) == (1, 1)
    assert ([end.result for end in world.ends], world.let_go_of) == (["client_disconnected"], [world.http])
    assert (world.begun.events, world.refused) == ([], [])


async def test_a_disconnected_client_gets_no_error() -> None:
    world = IntakeWorld()
    world.error = InvalidRequest("wrong")
    world.intake.client_gone()
    await world.end()
    assert (world.refused, world.let_go_of) == ([], [world.http])


async def test_a_stopping_gateway_aborts_the_request() -> None:
    world = IntakeWorld()
    world.intake.cancel()
    world.intake.cancel()
    await world.end()
    assert (world.num_aborted, [end.fault for end in world.ends]) == (1, [STOPPED])
    assert world.let_go_of == [world.http]


async def test_parsing_does_not_block_the_loop() -> None:
    """A reader thread parses."""
    from gateway.models.offload import LongPrompts
    from gateway.models.prompt_source import PromptSource

    prompts = LongPrompts(PromptSource({}, Metrics()))
    names: list[str] = []
    assert await prompts.read(lambda: names.append(threading.current_thread().name)) is None
    prompts.close()
    assert names[0].startswith("kvgate-read")
