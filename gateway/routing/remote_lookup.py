"""Lookups of a prompt's blocks in an index that is not in this process, before a decision, which does no I/O.

prompt ─ hashes per (model root, block size) ─► fetch ─► the index answers for them ─► Router.decide
"""

import asyncio

from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.index.base import Fetch
from gateway.routing.router import Router


class RemoteLookup:
    """Fetches what an index needs to answer for a prompt."""

    def __init__(self, router: Router, fetch: Fetch) -> None:
        self._router = router
        self._fetch = fetch

    async def fetch(self, request: InferenceRequest, prompt: Prompt) -> None:
        """Fetch for all prompts of a request at once. Raises UnknownModel or NoWorker."""
        if not (prompt.tokens or prompt.others) or not request.reads_cache:
            return
        wanted = self._router.asked_of(request, prompt)
        if len(wanted) == 1:
            await self._fetch(*wanted[0])
        elif wanted:
            await asyncio.gather(*(self._fetch(root, hashes) for root, hashes in wanted))
