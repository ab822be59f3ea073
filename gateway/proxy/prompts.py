"""The prompt of a request as tokens: made here, in a thread where it is long, or by one of its workers."""

import logging
import random
from collections.abc import Sequence
from functools import partial

from gateway.apis.to_chat import as_chat, unknown_dialect
from gateway.core.decision import Prompt
from gateway.core.errors import ContextTooLong, GatewayError
from gateway.core.fleet import EligibleWorker
from gateway.core.rendering import Rendering
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.value import replace
from gateway.models.offload import MAX_INLINE_TOKENS, LongPrompts
from gateway.models.prompt_source import PromptSource
from gateway.models.worker_tokenizer import WorkerTokenizer
from gateway.routing.prompt_limit import longest_prompt
from gateway.routing.remote_lookup import RemoteLookup
from gateway.routing.router import Router
from gateway.tokenization.chat_template import TooLong
from gateway.tokenization.prompt_encoder import MAX_WHOLE_BYTES, PromptError

log = logging.getLogger("kvgate.proxy")


class Prompts:
    """Token sources of one gateway. `remote_lookup` looks prompts up in an index outside this process."""

    def __init__(
        self,
        source: PromptSource,
        router: Router,
        worker_tokenizer: WorkerTokenizer,
        remote_lookup: RemoteLookup | None = None,
    ) -> None:
        self.source = source
        self.long_prompts = LongPrompts(source)
        self.worker_tokenizer = worker_tokenizer
        self._router = router
        self._remote_lookup = remote_lookup

    def __repr__(self) -> str:
        return f"Prompts({self.source!r})"

    def takes_time(self, request: InferenceRequest) -> bool:
        """True where a decision has to wait, or may have to: for tokens, or for a remote lookup."""
        is_here = self._remote_lookup is None and self.source.is_local(request)
        return not is_here or self.long_prompts.is_long(request) or self._may_be_whole(request)

    async def of(self, request: InferenceRequest, authorization: bytes | None) -> Prompt:
        """The tokens, looked up where the index is remote. Raises PromptError, UnknownModel or NoWorker."""
        eligible = self._router.fleet.eligible(request.model, path=request.path)
        if not self.source.is_local(request):
            prompt = await self._by_worker(request, authorization, eligible)
        else:
            prompt = await self._here(request, eligible)
            if not prompt.tokens and not self.source.is_local(request):  # its template was refused just now
                prompt = await self._by_worker(request, authorization, eligible)
        if self._remote_lookup is not None:
            await self._remote_lookup.fetch(request, prompt)
        return prompt

    async def _here(self, request: InferenceRequest, eligible: Sequence[EligibleWorker]) -> Prompt:
        """Tokenize here, in a thread where that takes long."""
        if not self.long_prompts.is_long(request):
            prompt = self._router.tokenize(request)
            if prompt.source != "failed" or not self.long_prompts.is_long(request):
                return prompt
        return await self._long_prompt(request, eligible)

    def _may_be_whole(self, request: InferenceRequest) -> bool:
        """True for a large chat of which some messages are known: they may be of no use."""
        messages = request.messages
        if messages is None or not messages.num_known:
            return False
        most = self.source.max_inline_parts(request.model)
        return len(request.body) > MAX_WHOLE_BYTES or len(messages.names) > most

    async def _by_worker(
        self, request: InferenceRequest, authorization: bytes | None, eligible: Sequence[EligibleWorker]
    ) -> Prompt:
        """Tokenize by a worker. Raises PromptError."""
        key = authorization.decode("latin-1") if authorization else None
        chosen = self._tokenizing(eligible)
        worker = chosen.member.worker
        if request.is_large:
            request = await self.long_prompts.beside(partial(_looked_into, request, worker.rendering))
        else:
            request = _looked_into(request, worker.rendering)
        most = 0 if request.is_cut else chosen.served.max_model_len or 0
        prompt = await self.worker_tokenizer.ask(
            worker.url, request, key, chosen.served.name, worker.rendering, most
        )
        prompt = _of_one_rendering(prompt, worker.rendering, eligible)
        if prompt.num_tokens > MAX_INLINE_TOKENS:
            await self.long_prompts.hash(prompt, self._router.hasher(request))
        return prompt

    async def known_of(self, request: InferenceRequest, authorization: bytes | None, log_id: str) -> Prompt:
        """The tokens, or an empty prompt where they cannot be made, which is counted. Raises UnknownModel or
        NoWorker."""
        try:
            return await self.of(request, authorization)
        except PromptError as exc:
            return self.source.failed(request.model, str(exc))
        except GatewayError:
            raise
        except Exception:  # noqa: BLE001  a bug must not leave the client waiting
            log.exception("request %s: tokenizing failed", log_id)
            return self.source.failed(request.model, "a bug, see the log")

    async def _long_prompt(self, request: InferenceRequest, eligible: Sequence[EligibleWorker]) -> Prompt:
        """Tokenize a long prompt beside the event loop. Raises PromptError, or ContextTooLong for a prompt
        that none of these workers takes."""
        most = 0 if request.is_cut else longest_prompt(eligible)
        try:
            return await self.long_prompts.ask(request, self._router.hasher(request), most)
        except TooLong as exc:
            if not 0 < most < exc.num_tokens:
                raise
            raise ContextTooLong(most, exc.num_tokens) from exc

    def _tokenizing(self, eligible: Sequence[EligibleWorker]) -> EligibleWorker:
        """A worker with the same tokens as the others; one that failed lately only where no other is left."""
        some = [e for e in eligible if not e.is_apart] or eligible
        tokenizer = self.worker_tokenizer
        return random.choice([e for e in some if not tokenizer.is_resting(e.member.worker.url)] or some)


def _looked_into(request: InferenceRequest, rendering: Rendering) -> InferenceRequest:
    """Request with its fields decoded, as a worker of a rendering gets it to tokenize. Raises PromptError."""
    request = as_chat(request, unknown_dialect(rendering)) if request.kind is RouteKind.AGENT else request
    if request.is_large:
        _ = request.fields
    return request


def _of_one_rendering(prompt: Prompt, rendering: Rendering, eligible: Sequence[EligibleWorker]) -> Prompt:
    """Prompt as a worker of a rendering made it: unknown to workers of other ones."""
    others = {e.group.rendering: Prompt((), "failed") for e in eligible if e.group.rendering != rendering}
    return replace(prompt, others=others) if others else prompt
