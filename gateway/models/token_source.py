"""Who makes the tokens that a worker's cache is looked up by: we, a worker, or nobody. Pure.

    a tokenizer is given and broken              nobody: routed on load, until it is put right
    ours agrees with more workers than with      we; those that make other tokens are routed on load
    which any other one agrees
    else                                         a worker; as above, but by what the most of them make

What a worker did not answer is no word against it: ours are believed, and without ours it is not asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.models.token_parity import Judgement, disagreement

BROKEN = "its tokenizer is broken, see /admin/tokenizer"


class Maker(Enum):
    LOCAL = "local"
    REMOTE = "remote"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of a worker on a `day`: some templates print it, so that other days' differ."""

    judgement: Judgement
    day: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a model at a worker. `why` is for people."""

    maker: Maker
    why: str


def verdicts_of(
    judged: Mapping[str, Judged], *, has_local: bool, is_broken: bool = False
) -> tuple[Maker, dict[str, Verdict]]:
    """How the model's requests get their tokens, and for which workers these hold."""
    if is_broken:
        return Maker.NONE, {name: Verdict(Maker.NONE, BROKEN) for name in judged}
    families = _families(judged)
    most = max(map(len, families), default=0)
    num_agreeing = sum(_agrees(each.judgement) for each in judged.values())
    if has_local and num_agreeing >= most:
        return Maker.LOCAL, {name: _beside_ours(each.judgement) for name, each in judged.items()}
    if not families:
        silent = Verdict(Maker.NONE, "no tokenizer is found for it, and its own /tokenize does not answer")
        return (Maker.NONE if judged else Maker.REMOTE), dict.fromkeys(judged, silent)
    first = next(family for family in families if len(family) == most)
    return Maker.REMOTE, {name: _beside(each.judgement, name in first) for name, each in judged.items()}


def _families(judged: Mapping[str, Judged]) -> Sequence[Sequence[str]]:
    """Those that differ from us, by what they make."""
    families: list[list[str]] = []
    for name, each in judged.items():
        if not each.judgement.made or _agrees(each.judgement):
            continue
        for family in families:
            other = judged[family[0]]
            if each.day != other.day or not disagreement(each.judgement.made, other.judgement.made):
                family.append(name)
                break
        else:
            families.append([name])
    return families


def _agrees(judgement: Judgement) -> bool:
    return judgement.num_compared > 0 and judgement.difference is None


def _beside_ours(judgement: Judgement) -> Verdict:
    if judgement.difference:
        return Verdict(Maker.NONE, judgement.difference)
    if not judgement.num_compared:
        return Verdict(Maker.LOCAL, "not compared: its /tokenize does not answer")
    return Verdict(Maker.LOCAL, f"equal in all {judgement.num_compared} prompts that both tokenized")


def _beside(judgement: Judgement, is_of_most: bool) -> Verdict:
    if not judgement.made:
        return Verdict(Maker.REMOTE, "not compared: its /tokenize does not answer")
    if not is_of_most:
        return Verdict(Maker.NONE, "it makes other tokens than most workers of this model")
    return Verdict(Maker.REMOTE, judgement.difference or "no tokenizer is found for it here")
