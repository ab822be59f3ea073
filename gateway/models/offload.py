"""Long prompts: their tokens and hashes are made in a thread, beside the event loop.

Encoders work without the interpreter lock, so the loop goes on meanwhile; Python code (a template, the chain
of hashes) takes turns with it, see `host.SWITCH_INTERVAL_S`.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gateway.core.decision import Prompt
from gateway.core.decode_errors import LARGE
from gateway.core.request import InferenceRequest
from gateway.models.prompt_source import PromptSource
from gateway.runtime.process_limits import give_memory_back

MAX_THREADS: Final = 4
"""Threads for prompts: each keeps an encoder's megabytes of caches, and takes turns with the loop."""

MAX_INLINE_TOKENS: Final = 32 << 10
"""Tokens of a worker's answer that are hashed on the event loop, in about a millisecond."""

TRIM_AFTER_S: Final = 0.5
"""Seconds until memory is given back, once for all prompts that end within: a walk of the heap takes a
millisecond."""


class LongPrompts:
    """Threads for long prompts, apart from the loop's own, which resolve workers' names and must not wait
    behind prompts. One core is left to the loop."""

    def __init__(self, prompts: PromptSource) -> None:
        self._prompts = prompts
        num_threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1))
        self._threads = ThreadPoolExecutor(num_threads, "kvgate-prompt")
        #  One at a time, so that their memory is bounded and other prompts do not wait behind them.
        self._large = ThreadPoolExecutor(1, "kvgate-large")
        # Bodies that arrive do not wait behind the prompts of others.
        self._readers = ThreadPoolExecutor(1, "kvgate-read")
        self._trim: asyncio.TimerHandle | None = None

    async def read(self, parse: Callable[[], InferenceRequest | None]) -> InferenceRequest | None:
        """Have a large body parsed in a thread. Raises what `parse` does."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, parse)

    async def beside(self, look: Callable[[], InferenceRequest]) -> InferenceRequest:
        """Have a large body looked into in a thread. Raises what `look` does."""
        return await asyncio.get_running_loop().run_in_executor(self._large, look)

    def is_long(self, request: InferenceRequest) -> bool:
        """True if tokenizing the prompt would block the loop for milliseconds: by its bytes, or by the number
        of messages, with what the model's template takes for each."""
        is_long = request.num_new_bytes > self._prompts.max_inline_bytes(request.model)
        return is_long or self._prompts.has_many_parts(request)

    async def ask(
        self, request: InferenceRequest, hash_ahead: Callable[[Prompt], None], max_tokens: int = 0
    ) -> Prompt:
        """Tokenize in a thread. `hash_ahead` is called there too, with the tokens; `max_tokens` is the
        model's limit, 0 if unknown. Raises TooLong."""
        threads = self._large if len(request.body) >= LARGE else self._threads
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, self._run, request, hash_ahead, max_tokens)

    async def hash(self, prompt: Prompt, hash_ahead: Callable[[Prompt], None]) -> None:
        """Have a prompt that a worker tokenized hashed in a thread."""
        await asyncio.get_running_loop().run_in_executor(self._large, hash_ahead, prompt)

    def let_go(self, num_bytes: int) -> None:
        """Note that a body of `num_bytes` was released. Memory of a large one goes back to the system soon:
        the C library would keep it for the next one."""
        if num_bytes >= LARGE and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._give_back)

    def _give_back(self) -> None:
        self._trim = None
        self._large.submit(give_memory_back)

    def close(self) -> None:
        """Stop without waiting; prompts in progress end by themselves."""
        if self._trim is not None:
            self._trim.cancel()
        self._large.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _run(
        self, request: InferenceRequest, hash_ahead: Callable[[Prompt], None], max_tokens: int
    ) -> Prompt:
        prompt = self._prompts.tokenize_long(request, max_tokens)
        hash_ahead(prompt)
        return prompt
