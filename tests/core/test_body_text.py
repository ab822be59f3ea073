"""The encoding of a body is found as Python's json finds it, and broken places are named by their byte."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import body_text
from gateway.core.body_text import PIECE_BYTES, as_utf8, encoding_of, why_no_object, why_unreadable
from gateway.core.errors import BodyTooLarge, InvalidRequest

TEXT = '{"model": "m", "prompt": "h\u00e9 \u4f60 \U0001f600"}'
ENCODINGS = [
    "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
]  # fmt: skip
MARKED_BE = [b"\xfe\xff" + TEXT.encode("utf-16-be"), b"\x00\x00\xfe\xff" + TEXT.encode("utf-32-be")]
WIDEST = 1 << 30


@pytest.mark.parametrize("body", [*[TEXT.encode(name) for name in ENCODINGS], *MARKED_BE], ids=range(9))
def test_each_encoding_is_found_and_read_in_any_pieces(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = encoding_of(body)
    assert encoding is not None and encoding == json.detect_encoding(body)
    for size in (1, 2, 3, 5, len(body), PIECE_BYTES):
        monkeypatch.setattr(body_text, "PIECE_BYTES", size)
        assert as_utf8(body, encoding, WIDEST).decode() == TEXT


@pytest.mark.parametrize(
    "body", [b"", b"{}", b" {}", b"\n{", b"[1]", b"--x\r\n", b"\xffx", TEXT.encode(), b"{"]
)
def test_a_plain_body_and_a_form_stay_as_they_are(body: bytes) -> None:
    assert encoding_of(body) is None


VALUES = st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3))


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.sampled_from(ENCODINGS), st.booleans())
def test_an_object_in_any_encoding_is_what_python_reads(
    value: dict[str, object], encoding: str, is_spaced: bool
) -> None:
    body = ((" \n" if is_spaced else "") + json.dumps(value, ensure_ascii=False)).encode(encoding)
    found = encoding_of(body)
    assert found is not None and json.loads(as_utf8(body, found, WIDEST)) == json.loads(body) == value


def test_what_is_read_counts_against_the_limit_before_all_of_it_is_made() -> None:
    body = ("\u4f60" * (8 * PIECE_BYTES)).encode("utf-16")
    assert len(as_utf8(body, "utf-16", len(body) * 3 // 2)) == 24 * PIECE_BYTES
    tracemalloc.start()
    with pytest.raises(BodyTooLarge, match="over 100 bytes in UTF-8"):
        as_utf8(body, "utf-16", 100)
    assert tracemalloc.get_traced_memory()[1] < len(body), "the first piece is over it"
    tracemalloc.stop()


@pytest.mark.parametrize("size", [1, 7, PIECE_BYTES])
@pytest.mark.parametrize(
    ("encoding", "broken"),
    [("utf-16-le", b"\x3d\xd8"), ("utf-16-be", b"\xdc\x00"), ("utf-32-le", b"\x00\xd8\x00\x00")],
)
def test_half_a_character_is_named_by_its_byte(
    encoding: str, broken: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = '{"a":"\U0001f600 '.encode(encoding)
    body = begin + broken + '"}'.encode(encoding)
    monkeypatch.setattr(body_text, "PIECE_BYTES", size)
    assert encoding_of(body) == encoding
    with pytest.raises(InvalidRequest, match=f"at byte {len(begin)}: ") as caught:
        as_utf8(body, encoding, WIDEST)
    assert caught.value.status == 400


LEFT, RIGHT = b'{"prompt":"h\xc3\xa9 ', b' and so on","n":1}'
HALF = "half of a surrogate pair at byte 15, which is not a character"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (LEFT + b"\\ud83d" + RIGHT, HALF),
        (LEFT + b"\\udE00" + RIGHT, HALF),
        (LEFT + b"\\ud83d\\u0041" + RIGHT, HALF),
        (LEFT + b"\\uD83D\\n" + RIGHT, HALF),
        (LEFT + b'\\ud83d"}', HALF),
        (LEFT + b"\\ud83d", HALF),
        (LEFT + b"\xf0\x9f" + RIGHT, "it is not UTF-8 at byte 15: invalid continuation byte"),
        (LEFT + b"\xed\xa0\xbd" + RIGHT, "it is not UTF-8 at byte 15: invalid continuation byte"),
        (LEFT + b"\xff" + RIGHT, "it is not UTF-8 at byte 15: invalid start byte"),
        (LEFT, "it ends at byte 15, before it is complete"),
        (b'{"a":x}', "invalid character (byte 5)"),
        (b'{"a":NaN}', "NaN at byte 5 is not a JSON number"),
        (b'{"":-Infinity,"b":NaN}', "Infinity at byte 5 is not a JSON number"),
        (b'{"a":1} x', "trailing characters (byte 9)"),
        (b"\x1f\x8b\x08\x00rest", "it seems to be compressed (gzip) from byte 0 on; send it uncompressed"),
        (b"(\xb5/\xfdrest", "it seems to be compressed (zstd) from byte 0 on; send it uncompressed"),
        (b"x\x9crest", "it seems to be compressed (deflate) from byte 0 on; send it uncompressed"),
    ],
)
@pytest.mark.parametrize("begin", [0, 700])
def test_a_broken_place_is_named_by_its_byte(body: bytes, reason: str, begin: int) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as caught:
        msgspec.json.decode(body)
    if begin and "byte 0" in reason:
        return
    for shifted in ("byte 15", "byte 5", "byte 9"):
        if shifted in reason:
            reason = reason.replace(shifted, f"byte {int(shifted[5:]) + begin}")
            break
    assert why_unreadable(caught.value, body, begin) == reason


def test_a_body_that_is_not_compressed_has_no_such_cause() -> None:
    assert why_no_object(b'{"a":1}') == why_no_object(b"x") == why_no_object(b"") == ""
