"""The work that a request is, with and without its tokens."""

from gateway.core.decision import Prompt
from gateway.core.ledger import REQUEST_TOKENS
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.tenancy.admission.model_queue import BYTES_PER_TOKEN, tokens_of, work_of


def test_prompt_without_tokens_counts_by_its_bytes() -> None:
    body = b"x" * 100 * BYTES_PER_TOKEN
    request = InferenceRequest(RouteKind.COMPLETION, "/v1/completions", body, {"model": "m"})
    assert tokens_of(request, Prompt(([1] * 7,))) == 7
    assert tokens_of(request, Prompt(())) == tokens_of(request, None) == 100
    assert work_of(request, None) == 100 + REQUEST_TOKENS
