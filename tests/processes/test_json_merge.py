"""Answers of several processes merged by the rules beside the fields."""

from typing import Annotated, Any

import pytest

from gateway.admin import fields
from gateway.admin.fields import FIRST, MAX, MEAN, MIN, SUM, WORST, View
from gateway.processes.json_merge import merge, merger_of


class Part(View):
    name: str
    count: Annotated[int, SUM]


class Some(View):
    num: Annotated[int, MAX]
    total: Annotated[int, SUM]
    mean: Annotated[float, MEAN]
    least: Annotated[float | None, MIN]
    word: str | None
    state: Annotated[str, WORST]
    is_up: bool
    ids: list[str]
    parts: list[Part]
    counts: Annotated[dict[str, int], SUM]
    whole: Annotated[Part, FIRST]


@pytest.mark.parametrize(
    ("field", "values", "merged"),
    [
        ("num", [1, 3, 2], 3),
        ("total", [2, 2], 4),
        ("mean", [1.0, 2.0], 1.5),
        ("least", [0.5, None, 0.9], 0.5),
        ("least", [None, None], None),
        ("word", ["first", "second"], "first"),
        ("word", [None, "refused"], "refused"),
        ("is_up", [True, False], False),
        ("is_up", [True, True], True),
        ("state", ["exact", "catching_up"], "catching_up"),
        ("state", ["blind", "exact"], "blind"),
        ("state", ["joined", "joining"], "joining"),
        ("state", ["agree", "differ"], "differ"),
        ("state", ["new", "other"], "new"),
        ("ids", [["a1", "a2", "a3"], ["b1"]], ["a1", "b1", "a2", "a3"]),
        ("ids", [["m", "n"], ["n", "m"]], ["m", "n"]),
        ("ids", [[], []], []),
        ("counts", [{"a": 1}, {"a": 2, "b": 3}], {"a": 3, "b": 3}),
        ("whole", [{"name": "a", "count": 1}, {"name": "b", "count": 2}], {"name": "a", "count": 1}),
        ("undeclared", [7, 8], 7),
    ],
)
def test_a_field_is_merged_by_its_rule(field: str, values: list[Any], merged: Any) -> None:
    assert merge([{field: value} for value in values], merger_of(Some)) == {field: merged}


def test_objects_of_one_name_are_merged() -> None:
    lists = [[{"name": "a", "count": 1}], [{"name": "b", "count": 2}, {"name": "a", "count": 3}]]
    merged = merge([{"parts": each} for each in lists], merger_of(Some))
    assert merged == {"parts": [{"name": "a", "count": 4}, {"name": "b", "count": 2}]}


def test_workers_are_merged_by_id_and_up_where_all_processes_see_them_up() -> None:
    def endpoint(**worker: Any) -> dict[str, Any]:
        return {"url": "http://w:1", "workers": [{"id": "w:1", "in_flight": 3, **worker}]}

    def merged(*lists: list[dict[str, Any]]) -> Any:
        return merge([{"endpoints": each} for each in lists], merger_of(fields.FleetView))["endpoints"]

    first, second = endpoint(is_up=True, failed_requests=1), endpoint(is_up=False, failed_requests=1)
    assert merged([first], [second]) == [endpoint(is_up=False, failed_requests=2)]
    waiting = {"url": "http://w:1", "workers": []}
    assert merged([first], [waiting])[0]["workers"] == [
        {"id": "w:1", "in_flight": 3, "is_up": False, "failed_requests": 1}
    ]
    assert merged([first], [first])[0]["workers"][0]["is_up"] is True


def test_caches_of_processes_are_added_and_models_merged_by_name() -> None:
    cache = {"entries": 1, "bytes": 10, "max_bytes": 100}
    model = {"model": "m", "encoder": "fastokens", "templates": [{"name": "default"}], "segments": cache}
    both = {"entries": 2, "bytes": 20, "max_bytes": 200}
    tokenizer = {"models": [model], "conversations": cache, "remote_tokenizers": cache}
    assert merge([tokenizer, tokenizer], merger_of(fields.TokenizersView)) == {
        "models": [{**model, "segments": both}],
        "conversations": both,
        "remote_tokenizers": both,
    }


def test_the_largest_losses_come_first() -> None:
    def lost(**tokens: int) -> dict[str, Any]:
        return {"largest": [{"id": name, "recomputed_tokens": num} for name, num in tokens.items()]}

    merged = merge([lost(a=10, b=7), lost(c=9, b=4)], merger_of(fields.CacheLossesView))["largest"]
    assert [(each["id"], each["recomputed_tokens"]) for each in merged] == [("b", 11), ("a", 10), ("c", 9)]


def test_queues_of_each_process_are_added() -> None:
    queue = {
        "model": "m",
        "queued_requests": 2,
        "exits": {"served": 3},
        "priorities": [{"name": "0", "queued_requests": 2}],
    }
    tenant = {"name": "t", "in_flight": 1, "remaining_requests": 4.5}
    merged = merge([{"queues": [queue], "tenants": [tenant]}] * 2, merger_of(fields.AdmissionView))
    assert merged["queues"] == [
        {
            "model": "m",
            "queued_requests": 4,
            "exits": {"served": 6},
            "priorities": [{"name": "0", "queued_requests": 4}],
        }
    ]
    assert merged["tenants"] == [{"name": "t", "in_flight": 2, "remaining_requests": 4.5}]
