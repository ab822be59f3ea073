"""Prompts too long for the event loop: their tokens and hashes are made in a thread.

Encoders work without the interpreter lock, so the loop goes on meanwhile; what is Python (a template, the
chain of hashes) takes turns with it, see `host.SWITCH_INTERVAL_S`.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.core.decision import Prompt
from gateway.core.request import InferenceRequest
from gateway.prompts import PromptSource

MAX_THREADS = 4
"""Each keeps an encoder's megabytes of caches, and takes turns with the loop."""


class LongPrompts:
    """Threads of its own: in the loop's names of workers are looked up, which must not wait behind prompts.
    One core is left to the loop."""

    def __init__(self, prompts: PromptSource) -> None:
        self._prompts = prompts
        num_threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1))
        self._threads = ThreadPoolExecutor(num_threads, "kvgate-prompt")

    def is_long(self, request: InferenceRequest) -> bool:
        """Whether its tokens would hold the loop for milliseconds."""
        return request.num_new_bytes > self._prompts.max_inline_bytes(request.model)

    async def ask(self, request: InferenceRequest, hash_ahead: Callable[[Prompt], None]) -> Prompt:
        """`hash_ahead` is called in the thread too, with the tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, request, hash_ahead)

    def close(self) -> None:
        """What is under way ends by itself; nobody waits for it."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, request: InferenceRequest, hash_ahead: Callable[[Prompt], None]) -> Prompt:
        prompt = self._prompts.tokenize(request)
        hash_ahead(prompt)
        return prompt
