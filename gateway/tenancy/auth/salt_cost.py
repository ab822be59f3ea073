"""Cost of keeping tenants' caches apart: tokens that would have been cached if all shared one cache.

An estimate from the prompts sent: prompts in chunks of CHUNK_TOKENS, named without their salt, each with the
salt under which it came; the least recently used are forgotten, as in one cache of the fleet's size. The
prefix that a prompt shares with one of another salt, less its own cached prefix, is the cost of its salt.
Only whole chunks count, which underestimates; and every request is assumed to reach its prefix, which
overestimates.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from xxhash import xxh3_64_intdigest

from gateway.core.blocks import Tokens

CHUNK_TOKENS = 256
MAX_CHUNKS = 1 << 16
"""16 M tokens, some 13 MB."""
MANY = ""
"""In place of a salt: a chunk that came under more than one."""


class SaltCost:
    """Estimator of the tokens lost to salts. `capacity` is in chunks, and may be set at any time."""

    def __init__(self) -> None:
        self.capacity = MAX_CHUNKS
        self.num_tokens = 0
        self.num_seen = 0
        self._chunks: OrderedDict[int, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"SaltCost({self.num_tokens} of {self.num_seen} tokens, {len(self._chunks)} chunks)"

    def set_capacity(self, num_tokens: int) -> None:
        """Set the capacity to the size of all caches together; 0 if unknown."""
        self.capacity = min(max(num_tokens // CHUNK_TOKENS, 1), MAX_CHUNKS) if num_tokens else MAX_CHUNKS

    def see(self, model: str, prompts: Sequence[Tokens], salt: str, num_cached: int) -> None:
        """Count a request; `num_cached` is its predicted number of cached tokens."""
        num_known = 0
        for tokens in prompts:
            num_known += min(self._known(model, tokens, salt), max(len(tokens) - 1, 0))
            self.num_seen += len(tokens)
        self.num_tokens += max(num_known - num_cached, 0)

    def _known(self, model: str, tokens: Tokens, salt: str) -> int:
        """Leading tokens that came under another salt; records them under this one."""
        chunks, num_known, is_known = self._chunks, 0, True
        name = xxh3_64_intdigest(model.encode())
        data = memoryview(tokens).cast("B")
        width = CHUNK_TOKENS * 4
        for number in range(len(tokens) // CHUNK_TOKENS):
            name = xxh3_64_intdigest(data[number * width : (number + 1) * width], name)
            known = chunks.get(name)
            if known is None:
                is_known = False
                chunks[name] = salt
                continue
            if known != salt:
                if is_known:
                    num_known = (number + 1) * CHUNK_TOKENS
                chunks[name] = MANY
            chunks.move_to_end(name)
        for old in list(islice(chunks, max(len(chunks) - self.capacity, 0))):
            del chunks[old]
        return num_known
