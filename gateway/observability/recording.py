"""One line of a recording: what a gateway saw of one request. Written by `recorder.py`, read by `replay/`."""

import msgspec


class Recorded(msgspec.Struct, omit_defaults=True, frozen=True):
    """at              arrival, seconds since 1970
    blocks          hashes of the prompt's full blocks of `block_size` tokens, 8 bytes each, little endian (in
                    JSON base64); empty where its tokens were not known, or where it had several prompts
    num_tokens      of the prompt, as told by the engine, else as counted by us
    output_tokens   as told by the engine
    ttft_s, e2e_s   from arrival; the first is missing where an answer was not streamed
    cached_tokens   of the prompt, as told by the engine; `overlap_tokens` as predicted
    num_blocks      of the worker's cache
    how             ended, cut, failed or client gone
    tokens          of the prompt, 4 bytes each, where they are to be kept
    """

    at: float
    model: str
    policy: str
    worker: str
    status: int
    how: str
    num_tokens: int
    e2e_s: float
    session: str | None = None
    block_size: int = 0
    blocks: bytes = b""
    tokens: bytes = b""
    output_tokens: int | None = None
    ttft_s: float | None = None
    cached_tokens: int | None = None
    overlap_tokens: int = 0
    num_blocks: int | None = None
