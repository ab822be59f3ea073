"""Readings of a model's tokenizer.json: as the class that transformers 5 makes of it, or as it is.

Workers on transformers 4 follow the file, those on transformers 5 the class
(`tokenization/tokenizer_class.py`).

    a worker's tokens differ ─ the other reading, same answers ─► more workers agree with it: it is used
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from gateway.models.loader import Loader, TokenizerEntry
from gateway.models.model_entry import ModelEntry
from gateway.parity.comparison import Made, ParityComparison, ParityResult
from gateway.parity.probes import PROBES
from gateway.parity.token_source import WorkerParity, follow_other
from gateway.tokenization.prompt_encoder import PromptEncoder

log = logging.getLogger("kvgate.models")

Comparison = Callable[[TokenizerEntry, str], ParityComparison]
"""Makes a comparison of the worker at a URL with a tokenizer."""


def compared_again(comparison: ParityComparison, made: Made) -> ParityResult:
    """Compare tokens that a worker made of probes before."""
    for probe in PROBES:
        if probe.name in made:
            comparison.add(probe, made[probe.name])
    return comparison.result()


async def settle_reading(entry: ModelEntry, loader: Loader, comparison: Comparison) -> None:
    """Choose the reading of a model's tokenizer by the answers of all its workers, once one of them differs
    from the reading in use."""
    renderer = entry.tokenizer.renderer
    if not isinstance(renderer, PromptEncoder) or not renderer.has_two_readings:
        return
    if not any(each.parity.difference for each in entry.checked.values()):
        return
    if entry.other is None:
        source = entry.tokenizer.source
        entry.other = loader.get(replace(source, is_of_file=not source.is_of_file))
    other = entry.other
    await loader.have(other)
    if entry.other is not other or other.renderer is None:
        return  # another worker's answers have changed it meanwhile
    entry.checked_by_other = {
        url: WorkerParity(compared_again(comparison(other, url), each.parity.made), each.day)
        for url, each in entry.checked.items()
    }
    if follow_other(entry.checked, entry.checked_by_other):
        _change(entry, other)


def _change(entry: ModelEntry, other: TokenizerEntry) -> None:
    entry.tokenizer, entry.other = other, entry.tokenizer
    entry.checked, entry.checked_by_other = entry.checked_by_other, entry.checked
    renderer = other.renderer
    assert isinstance(renderer, PromptEncoder)
    name = renderer.tokenizer_class
    reading = (
        f"tokenizer.json as it is (transformers 4), not built as {name}"
        if renderer.is_of_file
        else f"a {name} built from tokenizer.json (transformers 5), not the file as it is"
    )
    log.warning("tokenizer of %s: its workers use %s; the gateway now does too", entry.root, reading)
