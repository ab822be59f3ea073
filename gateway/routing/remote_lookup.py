"""What is held by workers whose events other gateways read: asked for before a decision, which does no I/O.

prompt ─ hashes per (model root, block size) ─► ask ─► told, by the prompt's last block ─► Router.decide
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import structs

from gateway.core.blocks import BlockHash
from gateway.core.decision import Prompt
from gateway.core.requests.request import InferenceRequest
from gateway.core.worker import WorkerId
from gateway.routing.router import Router

Ask = Callable[[BlockHash, Sequence[BlockHash]], Awaitable[Mapping[WorkerId, int]]]
"""Given a model's root and a prompt's hashes: leading blocks held, by worker. Raises nothing, and has its own
deadline."""


class Others:
    def __init__(self, router: Router, ask: Ask) -> None:
        self._router = router
        self._ask = ask

    async def tell(self, request: InferenceRequest, prompt: Prompt) -> Prompt:
        """The prompt with what is told of it; one of a batch is asked for beside the others. Raises
        UnknownModel or NoWorker."""
        if not prompt.tokens or not request.reads_cache:
            return prompt
        asked = self._router.asked_of(request, prompt)
        if len(asked) == 1:
            root, hashes = asked[0]
            return structs.replace(prompt, told={hashes[-1]: await self._ask(root, hashes)})
        told = await asyncio.gather(*(self._ask(root, hashes) for root, hashes in asked))
        return structs.replace(
            prompt, told={hashes[-1]: some for (_, hashes), some in zip(asked, told, strict=True)}
        )
