"""Token source per model: the local tokenizer, the workers' `/tokenize`, or none. Pure.

    a tokenizer is configured and broken         none: routed by load, until it is repaired
    local tokens equal those of at least as      local; workers with other tokens, or another day at
    many workers as any other version does       this hour, are routed by load
    else                                         remote; as above, by the version of most workers

A worker that does not answer does not count against the local tokenizer; without a local tokenizer it is not
used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.parity.comparison import ParityResult, parity_difference

BROKEN = "the tokenizer is broken, see /admin/tokenizer"
NO_OTHERS: Mapping[str, str] = {}


class TokenSource(Enum):
    LOCAL = "local"
    REMOTE = "remote"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class WorkerParity:
    """Parity result of a worker on a `day`: some templates print it, so that other days' results differ."""

    parity: ParityResult
    day: int = 0


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """Token source of a model at a worker, with the reason in words."""

    token_source: TokenSource
    why: str


def choose_sources(
    checked: Mapping[str, WorkerParity],
    *,
    has_local: bool,
    is_broken: bool = False,
    other_days: Mapping[str, str] = NO_OTHERS,
) -> tuple[TokenSource, dict[str, SourceChoice]]:
    """Choose the token source of a model, and of each of its workers. `other_days` are workers that print
    another day than most, with the reason."""
    if is_broken:
        return TokenSource.NONE, {name: SourceChoice(TokenSource.NONE, BROKEN) for name in checked}
    families = _families(checked)
    most = max(map(len, families), default=0)
    num_agreeing = sum(_agrees(each.parity) for each in checked.values())
    if has_local and num_agreeing >= most:
        return TokenSource.LOCAL, {
            name: SourceChoice(TokenSource.NONE, other_days[name])
            if name in other_days
            else _choice_with_local(each.parity)
            for name, each in checked.items()
        }
    if not families:
        silent = SourceChoice(
            TokenSource.NONE, "no tokenizer found, and the worker's /tokenize does not answer"
        )
        return (TokenSource.NONE if checked else TokenSource.REMOTE), dict.fromkeys(checked, silent)
    first = next(family for family in families if len(family) == most)
    return TokenSource.REMOTE, {
        name: _choice_with_remote(each.parity, name in first) for name, each in checked.items()
    }


def follow_other(checked: Mapping[str, WorkerParity], by_other: Mapping[str, WorkerParity]) -> bool:
    """True if more of a model's workers make the tokens of the other reading of its tokenizer (`by_other`)
    than those of the one in use (`checked`)."""
    num = sum(_agrees(each.parity) for each in checked.values())
    return sum(_agrees(each.parity) for each in by_other.values()) > num


def _families(checked: Mapping[str, WorkerParity]) -> Sequence[Sequence[str]]:
    """Groups of workers that differ from the local tokens, by equal tokens."""
    families: list[list[str]] = []
    for name, each in checked.items():
        if not each.parity.made or _agrees(each.parity):
            continue
        for family in families:
            other = checked[family[0]]
            if each.day != other.day or not parity_difference(each.parity.made, other.parity.made):
                family.append(name)
                break
        else:
            families.append([name])
    return families


def _agrees(parity: ParityResult) -> bool:
    return parity.num_compared > 0 and parity.difference is None


def _choice_with_local(parity: ParityResult) -> SourceChoice:
    if parity.difference:
        return SourceChoice(TokenSource.NONE, parity.difference)
    if not parity.num_compared:
        return SourceChoice(TokenSource.LOCAL, "not compared: the worker's /tokenize does not answer")
    return SourceChoice(TokenSource.LOCAL, f"equal in all {parity.num_compared} prompts that both tokenized")


def _choice_with_remote(parity: ParityResult, is_of_most: bool) -> SourceChoice:
    if not parity.made:
        return SourceChoice(TokenSource.REMOTE, "not compared: the worker's /tokenize does not answer")
    if not is_of_most:
        return SourceChoice(TokenSource.NONE, "tokens differ from those of most workers of this model")
    return SourceChoice(TokenSource.REMOTE, parity.difference or "no tokenizer found here")
