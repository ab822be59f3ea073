"""A line of a recording: a request as a gateway observed it. Written by `recorder.py`, read by `replay/`."""

import msgspec


class Recorded(msgspec.Struct, omit_defaults=True, frozen=True):
    """A recorded request.

    at              arrival, seconds since 1970
    blocks          hashes of the prompt's full blocks of `block_size` tokens, 8 bytes each, little endian (in
                    JSON base64); empty if the tokens were unknown or the request had several prompts
    prompt_tokens   reported by the engine, else kvgate's own count
    output_tokens   reported by the engine, as are `reported_cached_tokens`
    ttft_s, total_s   seconds from arrival; the first is missing if the answer was not streamed
    cache_blocks    capacity of the worker's cache
    result          ended, aborted, failed or client_disconnected
    tokens          the prompt's tokens, 4 bytes each, if they are recorded
    """

    at: float
    model: str
    policy: str
    worker: str
    status: int
    result: str
    prompt_tokens: int
    total_s: float
    session: str | None = None
    block_size: int = 0
    blocks: bytes = b""
    tokens: bytes = b""
    output_tokens: int | None = None
    ttft_s: float | None = None
    reported_cached_tokens: int | None = None
    predicted_cached_tokens: int = 0
    cache_blocks: int | None = None
