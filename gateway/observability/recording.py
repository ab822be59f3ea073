"""A line of a recording: a request as a gateway observed it. Written by `recorder.py`, read by `replay/`."""

import msgspec


class Recorded(msgspec.Struct, omit_defaults=True, frozen=True):
    """A recorded request.

    at              arrival, seconds since 1970
    blocks          hashes of the prompt's full blocks of `block_size` tokens, 8 bytes each, little endian (in
                    JSON base64); empty if the tokens were unknown or the request had several prompts
    num_tokens      prompt tokens reported by the engine, else kvgate's own count
    output_tokens   generated tokens reported by the engine
    ttft_s, e2e_s   seconds from arrival; the first is missing if the answer was not streamed
    cached_tokens   cached prompt tokens reported by the engine; `overlap_tokens` as predicted
    num_blocks      capacity of the worker's cache
    result          ended, aborted, failed or client_disconnected
    tokens          the prompt's tokens, 4 bytes each, if they are recorded
    """

    at: float
    model: str
    policy: str
    worker: str
    status: int
    result: str
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
