"""Headers that say how to read a request's body: a worker must not read another body than was judged here.

Content-Encoding    identity only: a compressed body is not decompressed here, and a worker (llama.cpp's
                    server, a proxy before an engine) that obeys the header would read another one
Content-Type        charset UTF-8 or ASCII only: a server that decodes JSON by its charset (aiohttp's do)
                    finds other names in the same bytes, such as `+ACI-` for a quote in UTF-7
"""

import re
from collections.abc import Iterable
from typing import Final

from gateway.core.errors import UnsupportedContent
from gateway.http.messages import Header

CONTENT_HEADERS: Final = frozenset({b"content-encoding", b"content-type"})
PLAIN_TYPE: Final = b"application/json"

_CHARSET: Final = re.compile(
    rb';[ \t]*charset[ \t]*=[ \t]*(?:"(?:utf-?8|us-ascii|ascii)"|(?:utf-?8|us-ascii|ascii))[ \t]*(?:;|$)',
    re.I,
)
_MAX_SHOWN: Final = 60


def check_contents(headers: Iterable[Header]) -> None:
    """Check all headers of a request. Raises UnsupportedContent."""
    for name, value in headers:
        if name in CONTENT_HEADERS:
            check_content(name, value)


def check_content(name: bytes, value: bytes) -> None:
    """Check a header of CONTENT_HEADERS. Raises UnsupportedContent."""
    if name == b"content-type":
        num_charsets = value.lower().count(b"charset")
        if num_charsets > 1 or (num_charsets and not _CHARSET.search(value)):
            raise UnsupportedContent(
                f"the body is read as UTF-8, not as Content-Type '{_shown(value)}'; send it as UTF-8, "
                "without a charset",
                code="unsupported_charset",
            )
        return
    for coding in value.split(b","):
        if coding.strip().lower() not in (b"", b"identity"):
            raise UnsupportedContent(
                f"Content-Encoding '{_shown(value)}' is not supported; send the body uncompressed, and "
                "without that header",
                code="unsupported_content_encoding",
            )


def _shown(value: bytes) -> str:
    return value[:_MAX_SHOWN].decode("latin-1")
