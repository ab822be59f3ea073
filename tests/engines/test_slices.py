"""Large messages decoded in steps equal small ones, and absurd ones are rejected."""

from itertools import accumulate
from typing import Any

import pytest
from msgspec import Raw, msgpack

from engines.sglang import Sglang
from engines.slices import LARGE_BYTES, MAX_EVENT_BLOCKS, MAX_EVENTS, PORTION_BLOCKS, array_head, portions
from engines.trtllm import TrtLlm
from engines.trtllm_polled import NO_TOKEN
from engines.vllm import Vllm
from gateway.core.engine import Engine
from gateway.core.kv_events import BlocksRemoved, BlocksStored, DecodeError, EventBatch

SIZE = 16
ENGINES = [Vllm(), Sglang(), TrtLlm()]
NAMES = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
)


def frames(*events: Any) -> list[bytes]:
    return [b"kv", bytes(8), msgpack.encode([1.0, list(events), None])]


def stored(num: int, *, in_map: bool = False, **fields: Any) -> Any:
    tokens = [(n * 7919) % 130_000 for n in range(num * SIZE)]
    values = ["BlockStored", [(1 << 63) + n for n in range(num)], 5, tokens, SIZE, None, "GPU", None]
    named = {**dict(zip(NAMES, values, strict=True)), **fields}
    return named if in_map else list(named.values())


def steps(engine: Engine, *events: Any) -> tuple[int, EventBatch]:
    """Number of blocks before the batch, and the batch."""
    *before, batch = engine.decode_in_steps(frames(*events), is_replay=False)
    assert not any(before) and batch is not None
    return len(before), batch


def joined(batch: EventBatch) -> list[Any]:
    """Runs of an event joined into one: names, the parents of its portions, tokens."""
    runs = [event for event in batch.events if isinstance(event, BlocksStored)]
    tokens = [token for run in runs for token in run.tokens]
    return [[name for run in runs for name in run.engine_hashes], runs[0].parent, tokens]


@pytest.mark.parametrize("in_map", [False, True])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_a_large_event_is_split_into_consecutive_portions(engine: Engine, in_map: bool) -> None:
    event = stored(3 * PORTION_BLOCKS + 5, in_map=in_map)
    num, batch = steps(engine, event)
    whole = engine.decode(frames(event))
    assert num > 3
    assert joined(batch) == joined(whole)
    assert (batch.seq, batch.digest) == (whole.seq, whole.digest)
    runs = [event for event in batch.events if isinstance(event, BlocksStored)]
    assert [run.parent for run in runs[1:]] == [run.engine_hashes[-1] for run in runs[:-1]]
    assert max(len(run.engine_hashes) for run in runs) <= PORTION_BLOCKS


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_a_large_removal_is_complete(engine: Engine) -> None:
    names = [(1 << 62) + n for n in range(30_000)]
    _, batch = steps(engine, ["BlockRemoved", names, "GPU"])
    removed = [event for event in batch.events if isinstance(event, BlocksRemoved)]
    assert [name for event in removed for name in event.engine_hashes] == names


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_many_small_events_equal_the_whole(engine: Engine) -> None:
    names = list(range(1, 4_000))
    events = [stored(1, block_hashes=[name], parent_block_hash=name - 1 or None) for name in names]
    num, batch = steps(engine, *events)
    assert num > 5
    assert joined(batch) == joined(engine.decode(frames(*events)))


def test_extra_keys_stay_with_their_blocks() -> None:
    keys = [[f"salt{n}"] for n in range(4_000)]
    _, batch = steps(Vllm(), stored(4_000, in_map=True, extra_keys=keys))
    reported = [key for run in batch.events if isinstance(run, BlocksStored) for key in run.extra_keys or ()]
    assert reported == keys


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([["AllBlocksCleared"]] * (MAX_EVENTS + 1), "a batch of 131,073 events, beyond 131,072"),
        (
            [["BlockRemoved", [1] * (MAX_EVENT_BLOCKS + 1), "GPU"]],
            "an event of 131,073 blocks, beyond 131,072",
        ),
        ([stored(5_000, block_size=17)], "a large event of 5,000 blocks of 17 tokens with 80,000 tokens"),
        ([stored(5_000, token_ids=[None] * 80_000)], "neither numbers nor short texts"),
        ([stored(5_000, lora_name="G" * 2_000)], "a large event with a long name"),
        ([stored(5_000, block_hashes=None)], "expected an array"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: str(engine.name))
def test_an_absurd_message_is_rejected_with_the_reason(engine: Engine, events: list[Any], why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        steps(engine, *events)


@pytest.mark.parametrize("text", ["", "image", "x" * 31, "0" * 32, "f" * 64])
def test_texts_among_tokens_are_images(text: str) -> None:
    ids = [*range(50_000), *[text] * 30_000]
    _, batch = steps(TrtLlm(), stored(5_000, token_ids=ids))
    assert joined(batch)[2] == [*range(50_000), *[NO_TOKEN] * 30_000]


@pytest.mark.parametrize("num", [0, 15, 16, 65_535, 65_536])
def test_the_head_of_an_array_is_read(num: int) -> None:
    packed = msgpack.encode([0] * num)
    assert array_head(packed)[0] == num
    assert packed[array_head(packed)[1] :] == bytes(num)


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x80"])
def test_other_values_are_no_array(packed: bytes) -> None:
    with pytest.raises(DecodeError, match="expected an array"):
        array_head(packed)


def test_portions_end_between_tokens() -> None:
    """Tokens of all widths that msgpack has."""
    widths = [0, 127, 128, 255, 256, 65_535, 65_536, 0xFFFF_FFFF]
    event = stored(4_096, token_ids=(widths * (4_096 * SIZE // 8)))
    parts = [
        msgpack.decode(bytes(part)) for part in portions(Raw(msgpack.encode(event)), in_map=False) if part
    ]
    ends = list(accumulate(len(part[3]) for part in parts))
    assert [token for part in parts for token in part[3]] == event[3]
    assert ends == [PORTION_BLOCKS * SIZE * n for n in (1, 2, 3, 4)]
    assert len(msgpack.encode(event)) > LARGE_BYTES
