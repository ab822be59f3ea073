"""What keeping tenants' caches apart costs: tokens that would have been cached if all shared one.

An estimate, from what was sent: prompts in chunks of CHUNK_TOKENS, named without their salt, each with the
salt under which it came; the least used are forgotten, as in one cache of the fleet's size. What a prompt has
in common with one of another salt, less what is cached for itself, is what its salt gave up. It counts whole
chunks, so rather too little; and as if a request could always go where its prefix lies, so rather too much.
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
"""In place of a salt: a chunk came under more than one."""


class GivenUp:
    """`capacity` is in chunks, and may be set at any time."""

    def __init__(self) -> None:
        self.capacity = MAX_CHUNKS
        self.num_tokens = 0
        self.num_seen = 0
        self._chunks: OrderedDict[int, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"GivenUp({self.num_tokens} of {self.num_seen} tokens, {len(self._chunks)} chunks)"

    def set_capacity(self, num_tokens: int) -> None:
        """Of all caches together; 0: nobody knows."""
        self.capacity = min(max(num_tokens // CHUNK_TOKENS, 1), MAX_CHUNKS) if num_tokens else MAX_CHUNKS

    def see(self, model: str, prompts: Sequence[Tokens], salt: str, num_cached: int) -> None:
        """A request, with how many of its tokens were expected to be cached."""
        num_known = 0
        for tokens in prompts:
            num_known += min(self._known(model, tokens, salt), max(len(tokens) - 1, 0))
            self.num_seen += len(tokens)
        self.num_tokens += max(num_known - num_cached, 0)

    def _known(self, model: str, tokens: Tokens, salt: str) -> int:
        """Leading tokens that came under another salt; and from now on under this one."""
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
