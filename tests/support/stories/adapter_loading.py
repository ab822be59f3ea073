"""Adapters that administrators load."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.stories.joining_fleet import JoiningFleet, joining_fleet


@asynccontextmanager
async def loading_fleet(**options: Any) -> AsyncIterator[JoiningFleet]:
    """Fleet with a gateway that looks for adapter names on request only, or nearly."""
    async with joining_fleet(admin_load_adapters=True, **options) as f:
        yield f


async def ask_adapters(
    f: JoiningFleet, method: str, path: str = "", **options: Any
) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{f.gateway.admin_port}/admin/adapters{path}"
    async with f.session.request(method, url, **options) as answer:
        return answer.status, await answer.json()
