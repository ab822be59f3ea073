from typing import Any

import pytest

from gateway.processes.json_merge import merge


@pytest.mark.parametrize(
    ("values", "merged"),
    [
        ([1, 3, 2], 3),
        (["first", "second"], "first"),
        ([None, "refused"], "refused"),
        ([None, None], None),
        ([True, False], False),
        ([True, True], True),
        (["exact", "catching_up"], "catching_up"),
        (["blind", "exact"], "blind"),
        (["joined", "joining"], "joining"),
        (["agree", "differ"], "differ"),
        ([{"share_right": 0.5}, {"share_right": 0.9}], {"share_right": 0.5}),
        ([{"compared": 5, "evicted": 1}, {"compared": 6, "evicted": 0}], {"compared": 11, "evicted": 1}),
        ([{"a": 1, "failures": 1}, {"a": 1, "failures": 2, "b": "x"}], {"a": 1, "failures": 3, "b": "x"}),
        ([["a1", "a2", "a3"], ["b1"]], ["a1", "b1", "a2", "a3"]),
        ([["m"], ["m"]], ["m"]),
        ([["m", "n"], ["n", "m"]], ["m", "n"]),
        ([[], []], []),
    ],
)
def test_what_several_say_is_said_once(values: list[Any], merged: Any) -> None:
    assert merge(values) == merged


def test_counts_of_each_its_own_are_added_also_when_they_are_equal() -> None:
    assert merge([{"failures": 2, "blocks": 5}] * 2) == {"failures": 4, "blocks": 5}


def test_workers_are_one_by_their_id_and_up_where_all_see_them_up() -> None:
    def endpoint(**worker: Any) -> dict[str, Any]:
        return {"url": "http://w:1", "workers": [{"id": "w:1", "in_flight": 3, **worker}]}

    one, two = endpoint(is_up=True, failures=1), endpoint(is_up=False, failures=1)
    waiting = {"url": "http://w:1", "workers": []}
    merged = merge([{"endpoints": [one]}, {"endpoints": [two]}])
    assert merged == {"endpoints": [endpoint(is_up=False, failures=2)]}
    assert merge([[one], [waiting]])[0]["workers"] == [
        {"id": "w:1", "in_flight": 3, "is_up": False, "failures": 1}
    ]
    assert merge([[one], [one]])[0]["workers"][0]["is_up"] is True


def test_caches_of_each_process_are_added_and_models_are_one_by_their_name() -> None:
    cache = {"entries": 1, "bytes": 10, "max_bytes": 100}
    model = {"model": "m", "encoder": "fastokens", "templates": [{"name": "default"}], "segments": cache}
    both = {"entries": 2, "bytes": 20, "max_bytes": 200}
    tokenizer = {"models": [model], "conversations": cache, "asked_of_workers": cache}
    assert merge([tokenizer, tokenizer]) == {
        "models": [{**model, "segments": both}],
        "conversations": both,
        "asked_of_workers": both,
    }


def test_the_worst_of_all_come_first() -> None:
    def lost(**tokens: int) -> dict[str, Any]:
        return {"worst": [{"id": name, "recomputed_tokens": num} for name, num in tokens.items()]}

    told = merge([lost(a=10, b=7), lost(c=9, b=4)])["worst"]
    assert [(item["id"], item["recomputed_tokens"]) for item in told] == [("b", 11), ("a", 10), ("c", 9)]


def test_what_waits_here_and_there_is_added() -> None:
    queue = {"model": "m", "queued": 2, "ends": {"served": 3}, "bands": [{"name": "0", "queued": 2}]}
    tenant = {"name": "t", "under_way": 1, "requests_left": 4.5}
    merged = merge([{"queues": [queue], "tenants": [tenant]}] * 2)
    assert merged["queues"] == [
        {"model": "m", "queued": 4, "ends": {"served": 6}, "bands": [{"name": "0", "queued": 4}]}
    ]
    assert merged["tenants"] == [{"name": "t", "under_way": 2, "requests_left": 4.5}]
