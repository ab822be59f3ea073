"""Block hashes: ours, chained, the same for a prompt and for the engine's stored tokens.

    root    = xxh3_64(model)
    hash[i] = xxh3_64(the block's token ids as u32 LE · its extra keys, seed = hash[i-1])

The engine's hash is never used: it depends on version, algorithm and process seed. Extra keys (the
adapter's name, the first block's cache_salt, image identifiers) enter the hash in the order in
which vLLM puts them into `extra_keys`, so a prompt and an event agree without telling them apart.
A block of another size has other tokens, so engines with different block sizes share an index.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from struct import iter_unpack
from typing import Final, NamedTuple, NewType, TypeAlias, cast

from xxhash import xxh3_64_intdigest

BlockHash = NewType("BlockHash", int)
"""Unsigned 64-bit hash of a full block and everything before it."""

Tokens: TypeAlias = "array[int]"
"""Token ids, `array("I")`: 4 bytes each, little endian on every platform that engines run on."""

_digest = cast(Callable[[bytes, int], BlockHash], xxh3_64_intdigest)

ExtraKey: TypeAlias = str | int | bytes | Sequence["ExtraKey"] | None
ExtraKeys: TypeAlias = Sequence[ExtraKey] | None


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Pack ids; raises OverflowError for a negative id or one over 32 bits, TypeError for other types."""
    return array("I", ids)


def count_tokens(prompts: Sequence[Tokens]) -> int:
    """Return the number of tokens of all prompts of a request."""
    num_tokens = 0
    for tokens in prompts:
        num_tokens += len(tokens)
    return num_tokens


@lru_cache(maxsize=1024)
def root_hash(model: str) -> BlockHash:
    """The parent of every first block of `model` (the model's root name, shared by its aliases)."""
    return BlockHash(xxh3_64_intdigest(b"kvgate1\0" + model.encode()))


def hash_blocks(
    tokens: Tokens, block_size: int, parent: BlockHash, extra_keys: Sequence[ExtraKeys] | None = None
) -> list[BlockHash]:
    """The hashes of the full blocks of `tokens`, in order; a partial last block has none.

    `extra_keys` may be shorter than the number of blocks: the rest have none.
    """
    num_blocks = len(tokens) // block_size
    data = memoryview(tokens).cast("B")[: num_blocks * block_size * 4]
    digest, value = _digest, parent
    if num_blocks <= FEW_BLOCKS and not extra_keys:
        width, whole = block_size * 4, bytes(data)
        return [value := digest(whole[at : at + width], value) for at in range(0, len(whole), width)]
    blocks = iter_unpack(f"{block_size * 4}s", data)  # a slice and a concatenation each would cost the most
    if not extra_keys:
        return [value := digest(block, value) for (block,) in blocks]
    hashes: list[BlockHash] = []
    for (block,), extra in zip_longest(blocks, extra_keys[:num_blocks]):
        hashes.append(value := digest(block + pack_extra(extra) if extra else block, value))
    return hashes


SMALL_BLOCK: Final = 8
"""Tokens; hashes of smaller ones take more than the tokens that they are made of."""

FEW_BLOCKS: Final = 8
"""Length of a short prompt, for which slicing is cheaper than unpacking."""


class HashSpace(NamedTuple):
    """Everything but the tokens that block hashes depend on: model root, adapter, cache salt, block size."""

    root: BlockHash
    block_size: int
    adapter: str | None
    cache_salt: str | None

    def hash_blocks(self, tokens: Tokens, before: Sequence[BlockHash]) -> list[BlockHash]:
        """Hashes of the full blocks of `tokens`, chained to the blocks `before`."""
        extra = prompt_extra_keys(self.adapter, self.cache_salt, len(before) + len(tokens) // self.block_size)
        parent = before[-1] if before else self.root
        return hash_blocks(tokens, self.block_size, parent, extra[len(before) :] if extra else None)


class HashCache:
    """Hashes of runs of blocks that prompts have in common: a known run costs one hash of its bytes.

    A run is named by the hash before it and its own tokens, so equal names mean equal prefixes, and
    a conversation's next turn computes its new blocks only. Bounded by `max_runs`, about 1.5 KB each;
    of runs of small blocks, which are longer, by as much less.
    Threads may share it: one that finds a run just dropped has its hashes all the same.
    """

    RUN_BLOCKS = 32
    SMALL_RUN_BLOCKS = 256
    """Length of a run of small blocks (SGLang's have one token): finding one costs like hashing three."""

    def __init__(self, max_runs: int = 20_000) -> None:
        self._max_runs = max_runs
        self._runs: OrderedDict[int, list[BlockHash]] = OrderedDict()
        self._small: OrderedDict[int, list[BlockHash]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs) + len(self._small)

    def hash_blocks(
        self,
        tokens: Tokens,
        block_size: int,
        parent: BlockHash,
        extra_keys: Sequence[ExtraKeys] | None = None,
    ) -> list[BlockHash]:
        """Equal to the function of that name."""
        num_blocks = len(tokens) // block_size
        size = self.RUN_BLOCKS if block_size >= SMALL_BLOCK else self.SMALL_RUN_BLOCKS
        if num_blocks < size:
            return hash_blocks(tokens, block_size, parent, extra_keys)
        hashes: list[BlockHash] = []
        for first in range(0, num_blocks - num_blocks % size, size):
            run = tokens[first * block_size : (first + size) * block_size]
            hashes += self._run(
                run, block_size, parent, extra_keys[first : first + size] if extra_keys else None
            )
            parent = hashes[-1]
        rest = len(hashes)
        tail = tokens[rest * block_size :]
        return hashes + hash_blocks(tail, block_size, parent, extra_keys[rest:] if extra_keys else None)

    def _run(
        self, tokens: Tokens, block_size: int, parent: BlockHash, extra_keys: Sequence[ExtraKeys] | None
    ) -> list[BlockHash]:
        data = tokens.tobytes() + pack_extra(extra_keys) if extra_keys else tokens
        name = xxh3_64_intdigest(data, parent) ^ block_size
        runs, most = self._runs, self._max_runs
        if block_size < SMALL_BLOCK:
            runs, most = self._small, most * self.RUN_BLOCKS // self.SMALL_RUN_BLOCKS
        if (known := runs.get(name)) is not None:
            try:  # noqa: SIM105 - `suppress` takes a microsecond, and a long prompt has a hundred runs
                runs.move_to_end(name)
            except KeyError:
                pass
            return known
        runs[name] = hashes = hash_blocks(tokens, block_size, parent, extra_keys)
        if len(runs) > most:
            runs.popitem(last=False)
        return hashes


def pack_extra(key: ExtraKey) -> bytes:
    """An injective byte form of extra keys: type, length, content."""
    match key:
        case None:
            return b"n"
        case str():
            raw = key.encode("utf-8", "surrogatepass")
            return b"s%d:%b" % (len(raw), raw)
        case bytes():
            return b"b%d:%b" % (len(key), key)
        case int():
            return b"i%d;" % key
        case _:
            return b"l%d:%b" % (len(key), b"".join(pack_extra(item) for item in key))


def prompt_extra_keys(adapter: str | None, cache_salt: str | None, num_blocks: int) -> list[ExtraKeys] | None:
    """Extra keys of a text prompt's blocks: the adapter in each, the salt in the first."""
    if not adapter and not cache_salt:
        return None
    each: list[ExtraKey] = [adapter] if adapter else []
    first = [*each, cache_salt] if cache_salt else each
    keys: list[ExtraKeys] = [first, *([each] * (num_blocks - 1))]
    return keys[:num_blocks]
