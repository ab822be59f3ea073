"""Fixtures of the admin API."""

from collections.abc import AsyncIterator

import pytest

from tests.support.worlds.admin_api import Admined
from tests.support.worlds.roster import RosterWorld


@pytest.fixture
async def admined() -> AsyncIterator[Admined]:
    world = RosterWorld()
    await world.add()
    admined = Admined(world)
    async with admined.client:
        yield admined
    await world.roster.stop()
