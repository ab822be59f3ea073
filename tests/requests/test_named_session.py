import pytest

from gateway.http.messages import HttpRequest
from gateway.requests.named_session import session_of


def asked(*headers: tuple[bytes, bytes]) -> HttpRequest:
    return HttpRequest("POST", b"/v1/completions", headers=list(headers))


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ([], None),
        ([(b"x-session-id", b"h")], "h"),
        ([(b"x-session-id", b"h"), (b"cookie", b"sid=c")], "h"),
        ([(b"x-session-id", b""), (b"cookie", b"a=1; sid=c; b=2")], "c"),
        ([(b"cookie", b"a=1;sid=c=d")], "c=d"),
        ([(b"cookie", b"asid=c; sid")], None),
        ([(b"x-session-id", b"\xff")], "\xff"),
    ],
)
def test_a_header_goes_before_a_cookie(headers: list[tuple[bytes, bytes]], session: str | None) -> None:
    assert session_of(asked(*headers), b"x-session-id", b"sid") == session


def test_unconfigured_names_are_not_looked_at() -> None:
    assert session_of(asked((b"x-session-id", b"h"), (b"cookie", b"sid=c")), b"", b"") is None


@pytest.mark.parametrize(("size", "is_kept"), [(64, True), (65, False)])
def test_a_long_label_goes_on_as_the_hash_that_stands_for_it(size: int, is_kept: bool) -> None:
    http = asked((b"a", b"1"), (b"x-session-id", b"\xff" * size), (b"authorization", b"k" * size))
    session = session_of(http, b"x-session-id", b"")
    assert session is not None and http.header(b"x-session-id") == session.encode("latin-1")
    assert (session == "\xff" * size) is is_kept and len(http.headers) == 3
    assert session_of(http, b"authorization", b"") != session
    assert http.header(b"authorization") == b"k" * size, "an operator may choose any header"
