import pytest

from gateway.disaggregation.stream_holdback import MAX_BYTES, Beginning, HeldStream
from gateway.http.messages import ResponseHead

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
OTHER_ERROR = b'data: {"object":"error","message":"Decode transfer failed","code":500}\n\n'


@pytest.mark.parametrize(
    ("events", "beginning"),
    [
        ([ROLE], Beginning.OPEN),
        ([ROLE, TOKEN], Beginning.ANSWER),
        ([TEXT], Beginning.ANSWER),
        ([ROLE, ERROR, b"data: [DONE]\n\n"], Beginning.ERROR),
        ([ROLE + ERROR], Beginning.ERROR),
        ([OTHER_ERROR], Beginning.ERROR),
        ([ERROR[:20]], Beginning.OPEN),
        ([ERROR[:20], ERROR[20:]], Beginning.ERROR),
        ([b": ping\n\n"], Beginning.OPEN),
        ([b": ping\n\n" * (MAX_BYTES // 8 + 1)], Beginning.ANSWER),
    ],
)
def test_a_stream_is_held_until_its_beginning_is_known(events: list[bytes], beginning: Beginning) -> None:
    held = HeldStream(ResponseHead(200, []))
    seen = Beginning.OPEN
    for event in events:
        seen = held.feed(event)
        if seen is not Beginning.OPEN:
            break
    assert seen is beginning
    assert b"".join(events).startswith(held.data)
    assert repr(held) == f"HeldStream({len(held.data)} bytes)"


def test_an_error_within_a_text_is_no_error() -> None:
    held = HeldStream(ResponseHead(200, []))
    text = b'data: {"choices":[{"index":0,"text":"data: {\\"error\\": 1}"}]}\n\n'
    assert held.feed(text) is Beginning.ANSWER
