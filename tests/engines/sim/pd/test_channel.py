"""Lines of JSON between two ends: answers, errors, silence, and closed ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engines.sim.pd.channel import ChannelClient, ChannelConnection, ChannelError, Message, TransferChannel
from tests.support.patience import until


class Far:
    def __init__(self) -> None:
        self.gone: list[str | None] = []
        self.channel = TransferChannel(self._answer, lambda talk: self.gone.append(talk.key))

    async def _answer(self, message: Message, talk: ChannelConnection) -> Message | None:
        talk.key = message.get("key")
        return {"no": {"error": "no"}, "silent": None}.get(message["op"], {"echo": message})


@pytest.fixture
async def far() -> AsyncIterator[Far]:
    far = Far()
    await far.channel.open("127.0.0.1", 0)
    yield far
    await far.channel.close()


async def test_a_channel_passes_answers_errors_and_silence(far: Far) -> None:
    caller = await ChannelClient.open("127.0.0.1", far.channel.port, retries=False)
    assert await caller.ask(op="a", key="k") == {"echo": {"op": "a", "key": "k"}}
    with pytest.raises(ChannelError, match="no"):
        await caller.ask(op="no")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await caller.ask(op="silent", key="k")
    caller.close()


async def test_a_closed_caller_is_reported_with_its_keys(far: Far) -> None:
    caller = await ChannelClient.open("127.0.0.1", far.channel.port, retries=False)
    await caller.ask(op="a", key="k")
    caller.close()
    await until(lambda: far.gone)
    assert far.gone == ["k"]


async def test_a_closing_end_is_an_error(far: Far) -> None:
    caller = await ChannelClient.open("127.0.0.1", far.channel.port, retries=False)
    await caller.ask(op="a")
    await far.channel.close()
    with pytest.raises(ChannelError):
        await caller.ask(op="a")
    caller.close()


async def test_a_missing_end_is_an_error_or_waited_for(far: Far) -> None:
    await far.channel.close()
    with pytest.raises(ChannelError, match=str(far.channel.port)):
        await ChannelClient.open("127.0.0.1", far.channel.port, retries=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ChannelClient.open("127.0.0.1", far.channel.port, retries=True)
