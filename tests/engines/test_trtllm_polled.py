"""Polled events of TensorRT-LLM, decoded piece by piece."""

import json
from typing import Any

import pytest

from engines.slices import LARGE_BYTES
from engines.trtllm import TrtLlm
from engines.trtllm_polled import NO_TOKEN, polled_in_steps
from gateway.core.kv_events import BlocksStored, DecodeError

SIZE = 32


def block(name: int) -> dict[str, Any]:
    return {"block_hash": name, "tokens": [{"token_id": name % 1000} for _ in range(SIZE)], "cache_level": 0}


def stored(number: int, *names: int, parent: int | None = None) -> dict[str, Any]:
    data = {"type": "stored", "parent_hash": parent, "blocks": [block(name) for name in names]}
    return {"event_id": number, "data": data}


def answer(*events: Any) -> bytes:
    return json.dumps(list(events)).encode()


def test_a_large_event_is_a_batch_of_consecutive_runs() -> None:
    body = answer(stored(0, *range(1, 501), parent=None), stored(1, 501, parent=500))
    assert len(body) > LARGE_BYTES
    steps = list(polled_in_steps(body, SIZE, 7.0))
    batches = [batch for batch in steps if batch is not None]
    assert steps.count(None) > 3
    assert [(batch.seq, batch.ts) for batch in batches] == [(0, 7.0), (1, 7.0)]
    runs = [event for event in batches[0].events if isinstance(event, BlocksStored)]
    assert [name for run in runs for name in run.engine_hashes] == list(range(1, 501))
    assert [run.parent for run in runs] == [None, *(run.engine_hashes[-1] for run in runs[:-1])]
    assert batches == TrtLlm().decode_poll(body, SIZE, 7.0)


def test_a_block_that_is_too_large_is_rejected() -> None:
    large = {"block_hash": 1, "tokens": [{"token_id": 1}] * 10_000, "cache_level": 0}
    body = answer({"event_id": 0, "data": {"type": "stored", "blocks": [large]}})
    with pytest.raises(DecodeError, match="a block of "):
        list(polled_in_steps(body, SIZE, 7.0))


def test_a_token_id_that_is_text_matches_no_prompt() -> None:
    """Engines name the tokens of an image by a digest."""
    event = stored(0, 1)
    event["data"]["blocks"][0]["tokens"][3] = {"token_id": "9f86d081884c7d65", "token_extra_id": 0}
    (batch,) = [batch for batch in polled_in_steps(answer(event), SIZE, 7.0) if batch is not None]
    (run,) = batch.events
    assert isinstance(run, BlocksStored)
    assert list(run.tokens[:4]) == [1, 1, 1, NO_TOKEN]


def test_a_block_with_a_salt_matches_no_prompt_without_it() -> None:
    event = stored(0, 1, 2)
    event["data"]["blocks"][1]["cache_salt"] = "a"
    (batch,) = [batch for batch in polled_in_steps(answer(event), SIZE, 7.0) if batch is not None]
    (run,) = batch.events
    assert isinstance(run, BlocksStored) and run.extra_keys == [None, ["cache_salt:a"]]
