"""Tokens of a worker's prompts by the tokenizer that kvgate loaded for its model, to check that worker."""

from collections.abc import Iterable, Sequence

from gateway.core.request import InferenceRequest
from gateway.core.worker import Worker
from gateway.models.model_entry import ModelEntry
from gateway.models.prompt_source import PromptSource
from gateway.tokenization.prompt_encoder import PromptError


class LocalTokens:
    """Renders requests as a worker's engine does. `entries` are those of the catalog, loaded before."""

    def __init__(self, entries: Iterable[ModelEntry], prompts: PromptSource, worker: Worker) -> None:
        names = {served.name for served in worker.served}
        mine = (each for each in entries if each.names & names and each.rendering == worker.rendering)
        zoned = [(each.names, each.tokenizer.renderer, each.day.zone(worker.url)) for each in mine]
        self._renderers = {name: (renderer, zone) for names, renderer, zone in zoned for name in names}
        self._prompts = prompts

    def __repr__(self) -> str:
        return f"LocalTokens({sum(each is not None for each, _ in self._renderers.values())} names)"

    def __call__(self, request: InferenceRequest) -> Sequence[int]:
        """Tokens of a request's first prompt; empty where kvgate has no tokenizer for it, or fails at it."""
        renderer, zone = self._renderers.get(request.model, (None, None))
        if renderer is None:
            return ()
        try:
            made = self._prompts.made_by(renderer, request, zone)
        except PromptError:
            return ()
        return list(made.tokens[0]) if made.tokens else ()
