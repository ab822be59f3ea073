"""Metrics of tokenizers."""

from collections import Counter

from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.loader import LoadState, TokenizerEntry, TokenizerSource
from gateway.models.metrics import ModelsCollector
from gateway.models.model_entry import ModelEntry
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.parity.token_source import SourceChoice, TokenSource


def test_broken_tokenizers_token_sources_and_calls_are_exposed() -> None:
    catalog = Catalog(PromptSource({}, Metrics()), Fleet())
    for root, state in (("a", LoadState.LOADED), ("b", LoadState.BROKEN)):
        choices = {
            "http://w:1": SourceChoice(TokenSource.LOCAL, "equal"),
            "http://w:2": SourceChoice(TokenSource.NONE, "not"),
        }
        tokenizer = TokenizerEntry(TokenizerSource(root), state)
        catalog._entries[root] = ModelEntry(root, tokenizer, choices=choices if root == "a" else {})
    collected = ModelsCollector(catalog, Counter({"answered": 2, "late": 1})).collect()
    found = {(s.name, *s.labels.values()): s.value for metric in collected for s in metric.samples}
    assert found == {
        ("kvgate_tokenizer_broken", "a"): 0.0,
        ("kvgate_tokenizer_broken", "b"): 1.0,
        ("kvgate_token_source_endpoints", "a", "local"): 1,
        ("kvgate_token_source_endpoints", "a", "remote"): 0,
        ("kvgate_token_source_endpoints", "a", "none"): 1,
        ("kvgate_token_source_endpoints", "b", "local"): 0,
        ("kvgate_token_source_endpoints", "b", "remote"): 0,
        ("kvgate_token_source_endpoints", "b", "none"): 0,
        ("kvgate_tokenize_calls_total", "answered"): 2,
        ("kvgate_tokenize_calls_total", "late"): 1,
    }
