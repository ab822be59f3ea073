import json
from typing import Any

import pytest

from gateway.http.cache_report import asking, can_report

ASKED = {"kv_cache_report_mode": "full"}


@pytest.mark.parametrize(
    ("body", "xargs"),
    [
        ('{"model":"m","prompt":"x"}', ASKED),
        ('{ "model": "m", "stop": "}" }\n ', ASKED),
        ('{"model":"m","vllm_xargs":{"a":1}}', {"a": 1} | ASKED),
        ('{"model":"m","vllm_xargs":null}', ASKED),
        ('{"model":"m","vllm_xargs":[1]}', [1]),
        ('{"model":"m","prompt":"say \\"vllm_xargs\\" twice"}', ASKED),
    ],
)
def test_only_the_request_for_a_report_is_added_to_a_body(body: str, xargs: Any) -> None:
    asked = json.loads(asking(body.encode()))
    assert asked == json.loads(body) | {"vllm_xargs": xargs}


def test_numbers_keep_their_digits() -> None:
    body = b'{"model":"m","temperature":0.10,"vllm_xargs":{"a":1}}'
    assert b"0.10" in asking(body)


@pytest.mark.parametrize(
    ("since", "version", "is_able"),
    [
        ((0, 26), "0.32.0+cpu", True),
        ((0, 26), "0.26.0", True),
        ((0, 26), "0.25.1", False),
        ((0, 26), "1.0", True),
        ((0, 26), "0.26.1.dev5+g12", True),
        ((0, 26), "dev", False),
        ((0, 26), None, False),
        (None, "0.32.0", False),
    ],
)
def test_versions_with_reports_are_known(
    since: tuple[int, ...] | None, version: str | None, is_able: bool
) -> None:
    assert can_report(since, version) is is_able
