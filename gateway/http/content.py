"""Headers that say how to read a request's body: a worker must not read another body than was judged here.

Content-Encoding    identity only: a compressed body is not decompressed here, and a worker (llama.cpp's
                    server, a proxy before an engine) that obeys the header would read another one
Content-Type        charset UTF-8 or ASCII only: a server that decodes JSON by its charset (aiohttp's do)
                    finds other names in the same bytes, such as `+ACI-` for a quote in UTF-7; JSON in UTF-16
                    or UTF-32 goes on in UTF-8 (`core/body_text.py`), so without its charset
"""

import re
from typing import Final

from gateway.core.errors import UnsupportedContent
from gateway.http.messages import Header

CONTENT_HEADERS: Final = frozenset({b"content-encoding", b"content-type"})
PLAIN_TYPE: Final = b"application/json"

_CHARSET: Final = re.compile(
    rb';[ \t]*charset[ \t]*=[ \t]*(?:"(?:utf-?8|us-ascii|ascii)"|(?:utf-?8|us-ascii|ascii))[ \t]*(?:;|$)',
    re.I,
)
_WIDE: Final = re.compile(
    rb'application/json[ \t]*;[ \t]*charset[ \t]*=[ \t]*("?)utf-?(?:16|32)(?:-?[lb]e)?\1', re.I
)
_MAX_SHOWN: Final = 60


def check_contents(headers: list[Header]) -> None:
    """Check all headers of a request, in place. Raises UnsupportedContent."""
    for at, (name, value) in enumerate(headers):
        if name in CONTENT_HEADERS:
            headers[at] = name, check_content(name, value)


def check_content(name: bytes, value: bytes) -> bytes:
    """Check a header of CONTENT_HEADERS. Return the value that goes on, without the charset of a body that
    goes on in UTF-8. Raises UnsupportedContent."""
    if name == b"content-type":
        if value == PLAIN_TYPE:
            return value
        if _WIDE.fullmatch(value.strip()):
            return PLAIN_TYPE
        num_charsets = value.lower().count(b"charset")
        if num_charsets > 1 or (num_charsets and not _CHARSET.search(value)):
            raise UnsupportedContent(
                f"the body is read as UTF-8, not as Content-Type '{_shown(value)}'; send it as UTF-8, "
                "without a charset",
                code="unsupported_charset",
            )
        return value
    for coding in value.split(b","):
        if coding.strip().lower() not in (b"", b"identity"):
            raise UnsupportedContent(
                f"Content-Encoding '{_shown(value)}' is not supported; send the body uncompressed, and "
                "without that header",
                code="unsupported_content_encoding",
            )
    return value


def _shown(value: bytes) -> str:
    return value[:_MAX_SHOWN].decode("latin-1")
