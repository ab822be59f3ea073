"""Retry-After in each form that is sent, and values that name no time."""

import pytest

from gateway.http.messages import Header
from gateway.http.retry_after import MAX_S, MAX_VALUE_BYTES, http_date_s, retry_after_s

NOW_S = 784_111_777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110."""
IMF, RFC_850, ASCTIME = (
    b"Sun, 06 Nov 1994 08:49:37 GMT",
    b"Sunday, 06-Nov-94 08:49:37 GMT",
    b"Sun Nov  6 08:49:37 1994",
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"0", 0.0),
        (b"3", 3.0),
        (b" 3\t", 3.0),
        (b"007", 7.0),
        (b"120", 120.0),
        (b"9" * 400, MAX_S),
        (b"0.5", 0.5),
        (b"1.", 1.0),
        (b".25", 0.25),
        (IMF.replace(b"37 GMT", b"39 GMT"), 2.0),
        (IMF.replace(b"37 GMT", b"39 -0000"), 2.0),
        (IMF.replace(b"37 GMT", b"39 +0000"), 2.0),
        (IMF.replace(b"37 GMT", b"39 UTC"), 2.0),
        (IMF.replace(b"GMT", b"+0100"), None),
        (RFC_850.replace(b"37 GMT", b"39 GMT"), 2.0),
        (ASCTIME.replace(b":37", b":39"), 2.0),
        (IMF, 0.0),
        (IMF.replace(b"1994", b"1993"), 0.0),  # over already
        (b"Sun, 06 Nov 9994 08:49:37 GMT", MAX_S),
        (b"", None),
        (b"soon", None),
        (b"-1", None),
        (b"+1", None),
        (b"1e3", None),
        (b"1,5", None),
        (b"nan", None),
        (b"inf", None),
        (b"0x10", None),
        (b".", None),
        ("٣".encode(), None),
        (b"9" * (MAX_VALUE_BYTES + 1), None),
        (b"Sun, 06 Nov 1994 08:49:37", None),
        (b"Sun, 06 Nov 1994 08:49:37 CET", None),
        (b"Sun, 06 Nov 1994 24:00:00 GMT", None),
        (b"Sun, 00 Nov 1994 08:49:37 GMT", None),
        (b"Sun, 32 Nov 1994 08:49:37 GMT", None),
        (b"Sun, 06 Foo 1994 08:49:37 GMT", None),
        (b"Sun, 06 Nov 0000 08:49:37 GMT", None),
        (IMF + b" " * 5000 + b"x", None),
    ],
)
def test_each_form_of_a_time(value: bytes, expected: float | None) -> None:
    assert retry_after_s([(b"retry-after", value)], NOW_S) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"date", IMF)], None),
        ([(b"retry-after-ms", b"500")], 0.5),
        ([(b"retry-after", b"1"), (b"retry-after-ms", b"250")], 0.25),
        ([(b"retry-after-ms", b"soon"), (b"retry-after", b"1")], 1.0),
        ([(b"retry-after", b"1"), (b"retry-after", b"9")], 1.0),
        # by the worker's own clock, which is an hour behind
        ([(b"date", IMF.replace(b"08:", b"07:")), (b"retry-after", IMF.replace(b"08:49", b"07:50"))], 60.0),
        ([(b"date", b"yesterday"), (b"retry-after", IMF.replace(b"49", b"50"))], 60.0),
    ],
)
def test_headers_that_name_a_time(headers: list[Header], expected: float | None) -> None:
    assert retry_after_s(headers, NOW_S) == expected


@pytest.mark.parametrize("form", [IMF, RFC_850, ASCTIME])
def test_the_three_forms_of_a_date_mean_the_same(form: bytes) -> None:
    assert http_date_s(form, NOW_S) == NOW_S


@pytest.mark.parametrize(("year", "full"), [(b"94", 1994), (b"44", 2044), (b"45", 1945), (b"99", 1999)])
def test_a_year_of_two_digits_is_at_most_fifty_years_ahead(year: bytes, full: int) -> None:
    short = http_date_s(RFC_850.replace(b"94", year), NOW_S)
    assert short == http_date_s(IMF.replace(b"1994", b"%d" % full), NOW_S)
