"""KV events: what an engine says about its prefix cache, in our words.

An engine adapter (`engines/<name>.py`) decodes its wire into these values; nothing behind the
adapter knows the wire. Engine hashes are opaque: they serve parent links and removals only. What a
block *is* follows from its tokens and extra keys (`blocks.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core.blocks import BlockHash, ExtraKeys, Tokens

EngineHash: TypeAlias = int | bytes
"""The engine's own block hash, as it came: an unsigned integer or raw bytes."""

GPU = "GPU"
"""The medium of an engine's own cache, whatever the hardware; offload tiers say CPU, DISK, STORAGE."""

SHARED = "@"
"""In the name of a medium: a tier that several workers reach, by its identifier if it has one, as STORAGE@
or STORAGE@pool. What one of them stores there, all of them hold."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """A run of blocks, each the child of the one before; the first is the child of `parent`.

    `tokens` holds the whole run. `len(tokens)` may differ from `len(engine_hashes) * block_size`
    (partial blocks, masked blocks, placeholder stores of offload tiers): the reader must check.
    `extra_keys` has one entry per block, or is None where no block of the run has any.
    `group_idx` 0 with `spec_kind` None, or any group of full attention, is what prefixes are made of.
    `window` is the length in tokens of a sliding one.
    """

    engine_hashes: Sequence[EngineHash]
    parent: EngineHash | None
    tokens: Tokens
    block_size: int
    extra_keys: Sequence[ExtraKeys] | None = None
    medium: str = GPU
    group_idx: int = 0
    spec_kind: str | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class RunStored:
    """Blocks stored in a run, hashed by an agent: BlocksStored without tokens.

    `before` is the block hash of `parent`, or the root: where the two do not belong together, nothing can
    be placed. Only runs of groups that prefixes are made of are published.
    """

    blocks: Sequence[BlockHash]
    engine_hashes: Sequence[EngineHash]
    parent: EngineHash | None
    before: BlockHash
    medium: str = GPU
    group_idx: int = 0


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Physical blocks evicted: one count less for each (medium, group, engine hash)."""

    engine_hashes: Sequence[EngineHash]
    medium: str = GPU
    group_idx: int = 0


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The engine's own cache (medium GPU) is empty."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event that this adapter does not know, or cannot read, of the medium it names: counted, not
    fatal."""

    tag: str
    medium: str = GPU


KvEvent: TypeAlias = BlocksStored | RunStored | BlocksRemoved | BlocksCleared | UnknownEvent


def num_blocks(event: KvEvent) -> int:
    """The cost of applying an event: its blocks, and at least one."""
    return len(event.engine_hashes) or 1 if isinstance(event, BlocksStored | RunStored | BlocksRemoved) else 1


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A published message of one worker's stream.

    `seq` counts up by one per batch and starts at 0 with the engine process. `ts` is the engine's
    wall clock in seconds. `digest` (xxh3_64 of the payload) distinguishes a repeated batch from another
    engine's batch with the same number.
    """

    seq: int
    ts: float
    dp_rank: int | None
    events: Sequence[KvEvent]
    digest: int


class DecodeError(ValueError):
    """A payload that this adapter cannot read; the message says what was expected where."""


class ReplayUnavailable(DecodeError):
    """The engine answers that it cannot replay now."""
