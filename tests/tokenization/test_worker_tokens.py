from collections.abc import Generator

import pytest

from gateway.core.blocks import Tokens
from gateway.core.decode_errors import UNREADABLE
from gateway.tokenization.worker_tokens import STEP_BYTES, read_tokens, read_tokens_in_steps


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"tokens":[]}', []),
        (b'{"tokens":[1,2,4294967295]}', [1, 2, 0xFFFF_FFFF]),
        (b'{"count":2,"max_model_len":8192,"tokens":[1,2],"token_strs":null}', [1, 2]),
        (b'{"count":null,"tokens":[1]}', [1]),
    ],
)
def test_token_ids_are_read(body: bytes, expected: list[int]) -> None:
    assert list(read_tokens(body)) == expected


@pytest.mark.parametrize(
    "tokens",
    [
        *(b"[-1]", b"[4294967296]", b"[1.0]", b"[true]", b'["1"]', b"[null]", b"[[1]]", b"[1e400]", b"[NaN]"),
        *(b"null", b"7", b'"7"', b"{}", b"[" + b"9" * 5000 + b"]", b"[" * 200_000),
    ],
)
def test_an_invalid_list_of_ids_is_rejected(tokens: bytes) -> None:
    with pytest.raises(UNREADABLE):
        read_tokens(b'{"tokens":' + tokens + b"}")


@pytest.mark.parametrize("count", [b"0", b"1", b"3", b"-2", b"true", b"2.0", b"9" * 400])
def test_a_count_that_differs_is_rejected(count: bytes) -> None:
    with pytest.raises(UNREADABLE):
        read_tokens(b'{"tokens":[1,2],"count":' + count + b"}")


def test_an_answer_without_tokens_is_rejected() -> None:
    with pytest.raises(UNREADABLE):
        read_tokens(b'{"count":0}')


def run(steps: Generator[None, None, Tokens]) -> tuple[list[int], int]:
    """Tokens, and the number of steps before the last."""
    num_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return list(done.value), num_steps
        num_steps += 1


@pytest.mark.parametrize("form", ['{"tokens":%s}', '{"count":%d,"tokens": %s, "token_strs":null}'])
@pytest.mark.parametrize("num", [0, 3, 100_000])
def test_a_long_answer_is_read_in_steps(form: str, num: int) -> None:
    ids = list(range(num))
    body = (form.replace("%d", str(num)) % str(ids)).encode()
    tokens, num_steps = run(read_tokens_in_steps(body))
    assert tokens == ids and (num_steps > 5) is (len(body) > 5 * STEP_BYTES)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"tokens":' + b" " * 100_000,
        b'{"tokens":[' + b"1," * 50_000,
        b'{"tokens":[' + b"1," * 50_000 + b"-1]}",
        b'{"tokens":[' + b"1," * 50_000 + b"[1]]}",
        b'{"tokens":[' + b"1," * 50_000 + b'1],"count":50000}',
        b'{"tokens":[1],"more":[' + b"1," * 50_000 + b"1]}",
        b'{"count":1,"tokens":"' + b"1," * 50_000 + b'"}',
    ],
)
def test_an_invalid_long_answer_is_rejected(body: bytes) -> None:
    with pytest.raises(UNREADABLE):
        run(read_tokens_in_steps(body))
