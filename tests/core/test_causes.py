import errno
import socket

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.core.causes import cause_of

KEY = ConnectionKey("127.0.0.1", 1, False, True, None, None, None)


@pytest.mark.parametrize(
    ("exc", "cause"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "No such file or directory"),
        (
            aiohttp.ClientConnectorError(KEY, OSError(111, "Connect call failed ('127.0.0.1', 1)")),
            "Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (RedisConnectionError("Error 111 connecting to a:1. Connection refused."), "Connection refused"),
        (RedisConnectionError("no node: Error 111 connecting to a:1. It is odd."), "no node: It is odd"),
        (OSError("Multiple exceptions: [Errno 111] x, [Errno 101] y"), "Multiple exceptions: x, y"),
        (TimeoutError(), "no answer in time"),
        (ValueError("it is odd"), "it is odd"),
        (ValueError(), "ValueError"),
    ],
)  # fmt: skip
def test_an_error_is_described_without_numbers(exc: BaseException, cause: str) -> None:
    assert cause_of(exc) == cause
