"""Merges responses of several processes to the admin API, by the types and rules of `admin/fields.py`.

objects                        field by field
lists of objects               objects with the same id, url, worker, name or model are one
                               (those with `recomputed_tokens` highest first)
other lists                    in turn from each, without repeats: each has its newest first
numbers                        by their rule
true or false                  true where all processes agree
words, and unknown fields      the first process's; with the rule WORST the word furthest from well
nothing, or something          something
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from gateway.admin.fields import MergeRule, View

Merge = Callable[[Sequence[Any]], Any]
"""The values of a field, at least one and none of them None, as one."""

IDENTITIES = ("id", "url", "worker", "name", "model")
MOST_FIRST = "recomputed_tokens"
WORST_FIRST = (
    *("broken", "searching", "absent", "none", "remote", "waiting"),
    *("joining", "down", "joined"),
    *("ejected", "draining", "slow_start", "active"),
    *("disconnected", "blind", "catching_up", "unproven", "exact", "differ", "agree"),
)


class NoRule(TypeError):
    """A number without a rule."""


def merger_of(answer: type[View]) -> Merge:
    """Return the function that merges answers by the rules beside their fields. Raises NoRule."""
    hints = get_type_hints(answer, include_extras=True)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(answer)}
    return _objects({names[name]: _field(hint, f"{answer.__name__}.{name}") for name, hint in hints.items()})


def _field(hint: Any, where: str, rule: MergeRule | None = None) -> Merge:
    if get_origin(hint) is Annotated:
        rule = next((each for each in hint.__metadata__ if isinstance(each, MergeRule)), None)
        hint = hint.__origin__
    plain = _without_none(hint)
    if rule is MergeRule.FIRST:
        return _first
    if get_origin(plain) is list:
        return _lists(_field(get_args(plain)[0], where))
    if get_origin(plain) is dict:
        return _by_key(_field(get_args(plain)[1], where, rule))
    if issubclass(plain, View):
        return merger_of(plain)
    if plain is bool:
        return all
    if plain is str:
        return _worst if rule is MergeRule.WORST else _first
    if rule not in _NUMBERS:
        raise NoRule(f"{where} has no rule for its numbers: say SUM, MEAN, MAX, MIN or FIRST")
    return _NUMBERS[rule]


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint


def merge(values: Sequence[Any], one: Merge) -> Any:
    some = [value for value in values if value is not None]
    return one(some) if some else None


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _worst(words: Sequence[Any]) -> Any:
    return next((word for word in WORST_FIRST if word in words), words[0])


def _mean(numbers: Sequence[Any]) -> Any:
    return sum(numbers) / len(numbers)


_NUMBERS: Mapping[MergeRule | None, Merge] = {
    MergeRule.SUM: sum,
    MergeRule.MEAN: _mean,
    MergeRule.MAX: max,
    MergeRule.MIN: min,
}


def _objects(fields: Mapping[str, Merge]) -> Merge:
    def one(objects: Sequence[Any]) -> Any:
        names = dict.fromkeys(chain.from_iterable(objects))
        return {
            name: merge([each[name] for each in objects if name in each], fields.get(name, _first))
            for name in names
        }

    return one


def _by_key(value: Merge) -> Merge:
    def one(objects: Sequence[Any]) -> Any:
        keys = dict.fromkeys(chain.from_iterable(objects))
        return {key: merge([each[key] for each in objects if key in each], value) for key in keys}

    return one


def _lists(item: Merge) -> Merge:
    def one(lists: Sequence[Any]) -> Any:
        items = [each for turn in zip_longest(*lists) for each in turn if each is not None]
        together: dict[Any, list[Any]] = {}
        for number, each in enumerate(items):
            together.setdefault(_identity(each, number), []).append(each)
        merged = [merge([*same, *_doubts(same, len(lists))], item) for same in together.values()]
        if all(isinstance(each, Mapping) and MOST_FIRST in each for each in merged):
            merged.sort(key=lambda each: -each[MOST_FIRST])
        return merged

    return one


def _doubts(same: Sequence[Any], num_lists: int) -> list[Any]:
    """An object that not all lists have: nothing is true of it everywhere."""
    if len(same) == num_lists or not isinstance(same[0], Mapping):
        return []
    return [{name: False for name, value in same[0].items() if isinstance(value, bool)}]


def _identity(item: Any, number: int) -> Any:
    if not isinstance(item, Mapping):
        return item if isinstance(item, str | int | float) else number
    if "model" in item and "rendering" in item:
        return item["model"], item["rendering"]  # a model has a row for each rendering
    return next((item[field] for field in IDENTITIES if field in item), number)
