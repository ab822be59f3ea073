"""Errors of decoders for foreign bytes: from a worker, a client, Redis, an agent, a file.

A decoder of JSON or msgpack raises more than its own errors: RecursionError for nesting beyond the
interpreter's limit, ValueError for text that is no UTF-8 and for numbers of thousands of digits. Each place
that reads such bytes catches UNREADABLE; `tests/core/test_decode_errors.py` looks for places that do not.
"""

import msgspec

LARGE = 1 << 20
"""Bytes from which a body is not decoded whole: it is kept in one piece as it arrives, and looked into by
`requests/large_body.py`. Joined at its end it would be there twice, and hold the loop meanwhile."""
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, TypeError)
