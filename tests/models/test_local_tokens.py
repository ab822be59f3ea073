from dataclasses import replace
from typing import Any

from gateway.app import bundled_tokenizer
from gateway.core.fleet import Fleet
from gateway.core.rendering import Rendering
from gateway.models.catalog import Catalog
from gateway.models.local_tokens import LocalTokens
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.requests.parsing import parse_request
from tests.support.fakes import worker

CHAT = parse_request("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"a"}]}')
BROKEN = parse_request(
    "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":[{"type":"odd"}]}]}'
)
OTHER = parse_request("/v1/completions", b'{"model":"other","prompt":"a"}')


async def nothing(path: str, body: Any) -> bytes | None:
    return None


async def test_prompts_are_those_of_the_loaded_tokenizer() -> None:
    prompts = PromptSource({}, Metrics())
    catalog = Catalog(prompts, Fleet(), any_model=str(bundled_tokenizer()))
    one = worker()
    assert list(LocalTokens(catalog, prompts, one)(CHAT)) == []  # not loaded yet
    await catalog.look(one, nothing)
    ours = LocalTokens(catalog, prompts, one)
    assert len(ours(CHAT)) > 3
    assert (list(ours(BROKEN)), list(ours(OTHER))) == ([], [])
    assert list(LocalTokens(catalog, prompts, replace(one, rendering=Rendering("sglang")))(CHAT)) == []
    catalog.close()
