"""Comparison of tokens: a worker's with the local tokenizer's, or two workers' with one another. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gateway.core.decision import Prompt
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.parity.probes import ProbePrompt
from gateway.tokenization.tokenizer_class import USUAL_ADVICE

NUM_SHOWN = 4

Made = Mapping[str, Sequence[int]]
"""Worker's tokens by the name of the probe."""

Tokenize = Callable[[InferenceRequest], Prompt]
TextOf = Callable[[str, Sequence[int]], str | None]


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Result of a comparison: tokens `made` by the worker; the first `difference` in words, if any, among
    `num_compared` prompts that both tokenized."""

    made: Made
    num_compared: int = 0
    difference: str | None = None


class ParityComparison:
    """Comparison of a worker's tokens with the local ones (`tokenize`), probe by probe; `text` decodes tokens
    for messages. `with_chats`: chats can be compared too. `advice`: what a difference may come from."""

    def __init__(
        self,
        model: str,
        tokenize: Tokenize,
        text: TextOf,
        *,
        with_chats: bool = True,
        rendering: Rendering = VLLM,
        advice: str = USUAL_ADVICE,
    ) -> None:
        self.model = model
        self.rendering = rendering
        self._tokenize = tokenize
        self._text = text
        self._with_chats = with_chats
        self._advice = advice
        self._made: dict[str, Sequence[int]] = {}
        self._num_compared = 0
        self._difference: str | None = None

    def __repr__(self) -> str:
        return (
            f"ParityComparison({self.model}, {self._num_compared} compared, difference={self._difference!r})"
        )

    def add(self, probe: ProbePrompt, theirs: Sequence[int]) -> None:
        """Compare the worker's tokens of one probe."""
        self._made[probe.name] = theirs
        if probe.is_chat and not self._with_chats:
            return
        tokens = self._tokenize(probe.request(self.model)).tokens
        if not (ours := tokens[0] if tokens else ()):
            return
        self._num_compared += 1
        at = first_difference(ours, theirs)
        if at is not None and self._difference is None:
            self._difference = self._words(probe.name, ours, theirs, at)

    def result(self) -> ParityResult:
        return ParityResult(self._made, self._num_compared, self._difference)

    def _words(self, name: str, ours: Sequence[int], theirs: Sequence[int], at: int) -> str:
        one, other = (self._shown(ids[at : at + NUM_SHOWN]) for ids in (ours, theirs))
        return (
            "the worker tokenizes prompts differently, so its cached blocks cannot be found: in "
            f"{name} from token {at} on, {one} here and {other} there; {self._advice}"
        )

    def _shown(self, ids: Sequence[int]) -> str:
        return f"{list(ids)} {self._text(self.model, ids)!r}" if ids else "none"


def parity_difference(one: Made, other: Made) -> str | None:
    """First difference between two workers' tokens of the same prompt, in words; None where there is none."""
    for name in one if one != other else ():
        at = first_difference(one[name], other.get(name, one[name]))
        if at is not None:
            first, second = one[name][at : at + NUM_SHOWN], other[name][at : at + NUM_SHOWN]
            return f"in {name} they differ from token number {at} on, {list(first)} and {list(second)}"
    return None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """First position at which two sequences differ, or one ends; None where they are equal."""
    pairs = zip_longest(one, other)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)
