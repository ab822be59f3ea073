"""vLLM's ExampleConnector (0.32): a directory that all workers share; prompts are found by their tokens."""

from pathlib import Path

from xxhash import xxh3_64_hexdigest

from gateway.core.blocks import Tokens


def aligned(num_prompt: int, block_size: int) -> int:
    """Tokens of a prompt that are stored, and loaded: full blocks, without the last token."""
    return max(0, num_prompt - 1) // block_size * block_size


def place(store: Path, prompt: Tokens, block_size: int) -> Path:
    """Path of a prompt's blocks, whether they are there or not."""
    stored = prompt[: aligned(len(prompt), block_size)]
    return store / f"{xxh3_64_hexdigest(stored.tobytes())}.kv"
