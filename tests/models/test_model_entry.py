"""A model's entry, as people see it."""

from gateway.models.loader import LoadState, TokenizerEntry, TokenizerSource
from gateway.models.model_entry import REPAIR, ModelEntry, describe, report
from gateway.parity.comparison import ParityResult
from gateway.parity.token_source import SourceChoice, TokenSource, WorkerParity


def test_report_names_the_source_of_a_workers_tokens_and_its_fault() -> None:
    entry = ModelEntry("m", TokenizerEntry(TokenizerSource("m", is_given=True)))
    assert report(entry, "w").note == "tokens of m: remote, not compared; not loaded yet"
    entry.choices = {"w": SourceChoice(TokenSource.NONE, "they differ")}
    entry.checked = {"w": WorkerParity(ParityResult({}, 1, "a difference"))}
    assert (report(entry, "w").fault, report(entry, "x").fault) == ("a difference", None)
    entry.tokenizer.state = LoadState.BROKEN
    fault = report(entry, "w").fault
    assert fault is not None and fault.endswith(REPAIR)
    assert describe(entry)["workers"] == [{"worker": "w", "source": "none", "reason": "they differ"}]
