"""Usage of a request, as an engine reports it."""

from gateway.core.usage import Usage
from gateway.core.usage_reading import read_usage


def usage_of(prompt: int, cached: int) -> Usage | None:
    return read_usage(
        b'{"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}' % (prompt, cached)
    )
