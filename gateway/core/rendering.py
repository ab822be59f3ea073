"""Rendering: how an engine makes prompts of requests. Workers of one rendering make the same tokens."""

from typing import NamedTuple


class Rendering(NamedTuple):
    """Rules by which an engine renders prompts.

    engine            origin of the rules; an engine without rules of its own is taken for vLLM
    version           the version of the rules, () where they do not depend on it
    reasoning_parser  an option of the engine that changes the prompts of some requests; None: not set
    """

    engine: str = "vllm"
    version: tuple[int, ...] = ()
    reasoning_parser: str | None = None

    def __str__(self) -> str:
        number = ".".join(map(str, self.version))
        return f"{self.engine} {number}".strip()


VLLM = Rendering()
