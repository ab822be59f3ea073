import pytest

from gateway.core.errors import UnsupportedContent
from gateway.http.content import check_content, check_contents

CODING, TYPE = b"content-encoding", b"content-type"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (CODING, b""),
        (CODING, b"identity"),
        (CODING, b" Identity , identity"),
        (TYPE, b"application/json"),
        (TYPE, b"application/json; charset=utf-8"),
        (TYPE, b'text/plain;CHARSET="UTF-8"; a=b'),
        (TYPE, b"application/json; charset = us-ascii"),
        (TYPE, b"multipart/form-data; boundary=x"),
        (TYPE, b""),
    ],
)
def test_a_body_that_is_read_as_it_was_judged_goes_on(name: bytes, value: bytes) -> None:
    assert check_content(name, value) == value


@pytest.mark.parametrize(
    "charset", ["utf-16", "UTF-16LE", '"utf-16be"', "utf16", "utf-32", "utf-32le", "utf-32-be", "utf-16-le"]
)
@pytest.mark.parametrize("sign", ["=", " = "])
def test_the_charset_of_a_body_that_goes_on_in_utf_8_is_left_out(charset: str, sign: str) -> None:
    given = f"Application/JSON ; charset{sign}{charset} ".encode()
    assert check_content(TYPE, given) == b"application/json"
    headers = [(b"a", b"1"), (TYPE, given)]
    check_contents(headers)
    assert headers == [(b"a", b"1"), (TYPE, b"application/json")]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (CODING, b"gzip", "Content-Encoding 'gzip' is not supported; send the body uncompressed"),
        (CODING, b"GZIP", "'GZIP'"),
        (CODING, b"identity, br", "'identity, br'"),
        (CODING, b"x" * 10_000, "'" + "x" * 60 + "'"),
        (TYPE, b"multipart/form-data; boundary=x; charset=utf-16", "read as UTF-8, not as Content-Type"),
        (TYPE, b"text/plain; charset=utf-16", "read as UTF-8, not as Content-Type"),
        (TYPE, b"application/json; charset=utf-16; charset=utf-7", "read as UTF-8, not as Content-Type"),
        (TYPE, b"application/json; charset=utf-1", "read as UTF-8, not as Content-Type"),
        (TYPE, b"application/json; charset=utf-7", "without a charset"),
        (TYPE, b"application/json; charset=iso-8859-1", "without a charset"),
        (TYPE, b"application/json; charset=utf-8; charset=utf-7", "without a charset"),
        (TYPE, b"application/json; charset*=utf-8''utf-7", "without a charset"),
        (TYPE, b"application/json; charset*0=utf; charset*1=-7", "without a charset"),
        (TYPE, b'application/json; charset="utf-8\\"', "without a charset"),
        (TYPE, b"application/json; charset", "without a charset"),
    ],
)
def test_a_body_that_a_worker_could_read_otherwise_is_refused(name: bytes, value: bytes, words: str) -> None:
    with pytest.raises(UnsupportedContent, match=words.replace("*", r"\*")) as caught:
        check_content(name, value)
    assert caught.value.status == 415


def test_all_headers_of_a_request_are_checked() -> None:
    check_contents([(b"a", b"gzip"), (TYPE, b"application/json"), (CODING, b"identity")])
    with pytest.raises(UnsupportedContent):
        check_contents([(CODING, b"identity"), (CODING, b"gzip")])
