import pytest

from gateway.http.stream_chunks import has_token, read_usage_chunk


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"choices":[{"text":"a"}]}', True),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"reasoning":"hm"}}]}', True),
        (b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', True),
        (b'{"type":"response.output_text.delta"}', True),
        (b'{"type":"content_block_start"}', False),
        (b"[DONE]", False),
    ],
)
def test_generated_content_is_a_token(data: bytes, expected: bool) -> None:
    assert has_token(data) is expected


def test_the_last_chunk_has_no_choices() -> None:
    chunk = read_usage_chunk(b'{"choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"fp"}')
    assert chunk is not None and chunk.choices == [] and bytes(chunk.system_fingerprint) == b'"fp"'


@pytest.mark.parametrize("data", [b"", b"[DONE]", b'{"choices":[}'])
def test_an_unreadable_chunk_is_none(data: bytes) -> None:
    assert read_usage_chunk(data) is None
