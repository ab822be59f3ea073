"""The request that puts a prefix into a worker's cache: a completion of its token ids with one token."""

from typing import Any, Final

from gateway.core.json_values import encode
from gateway.warming.hot_prefixes import Branch

PATH: Final = "/v1/completions"


def body_of(branch: Branch, num_blocks: int, model: str, priority: int | None) -> bytes:
    """Return the body for the first blocks of a prefix, by the worker's name of its model. `priority`
    is the engine's lowest, None where it takes none."""
    fields: dict[str, Any] = {
        "model": model,
        "prompt": branch.prefix_tokens()[: num_blocks * branch.space.block_size],
    }
    fields |= {"max_tokens": 1, "temperature": 0}
    if branch.space.cache_salt is not None:
        fields["cache_salt"] = branch.space.cache_salt
    if priority is not None:
        fields["priority"] = priority
    return encode(fields)
