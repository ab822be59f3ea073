"""Redirects of workers: which answers are one, and their description."""

import pytest

from gateway.http.messages import Header
from gateway.http.redirect import is_redirect, redirect_of


@pytest.mark.parametrize(
    ("status", "is_one"),
    [(200, False), (299, False), (300, True), (301, True), (302, True), (303, True), (304, False)]
    + [(307, True), (308, True), (399, True), (400, False), (404, False)],
)
def test_all_of_3xx_but_not_modified_is_a_redirect(status: int, is_one: bool) -> None:
    assert is_redirect(status) is is_one


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (
            [(b"location", b"https://10.0.0.9/v1")],
            "301, a redirect to https://10.0.0.9/v1, which is not followed",
        ),
        (
            [(b"location", b"http://u:pw@h/\x1b[31m")],
            "301, a redirect to http://...@h/\\x1b[31m, which is not",
        ),
        ([(b"content-type", b"text/html")], "301, a redirect without a target"),
    ],
)
def test_operators_read_the_target(headers: list[Header], words: str) -> None:
    assert redirect_of(301, headers).startswith(words)


def test_the_description_is_short() -> None:
    assert len(redirect_of(308, [(b"location", b"http://h/" + b"x" * 9000)])) < 200
