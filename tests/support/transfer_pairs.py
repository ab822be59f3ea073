"""A prefill worker and a decode worker, and what they say of a transfer."""

import json
from typing import Any

from gateway.core.kv_connector import Pair
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId

SERVED = (ServedModel("m", "m"),)


def pair(number: int = 5, **more: Any) -> Pair:
    prefill = Worker(
        WorkerId("p"),
        "http://p:1",
        SERVED,
        role=Role.PREFILL,
        transfer=Transfer("x", "10.0.0.1:8998", "engine-1"),
        **more,
    )
    return Pair(prefill, Worker(WorkerId("d"), "http://d:1", SERVED, role=Role.DECODE), number)


def fields_of(body: bytes) -> dict[str, Any]:
    fields = json.loads(body)
    assert isinstance(fields, dict)
    return fields


def prefill_answer(**fields: Any) -> bytes:
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 32}}
    return json.dumps({"usage": usage, "choices": [{"finish_reason": "length"}], **fields}).encode()
