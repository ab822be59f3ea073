"""kvgate beside uvicorn, which is asked, and nginx, with recorded answers.

`others.py` records them; a case that was changed since does not pass for recorded.
"""

from pathlib import Path

import pytest

from tests.conformance.cases import CASES, Case
from tests.conformance.others import Reading, ask_uvicorn, digest, handed, recorded
from tests.conformance.table import page
from tests.conformance.wire import run

ROOT = Path(__file__).parents[2]

LAXER = {
    ("tab before chunked", "nginx"): "OWS is a space or a tab; llhttp and the RFC agree",
    ("length in spaces", "nginx"): "the same: a tab beside the digits is OWS",
    ("an empty Host", "nginx"): "the RFC allows it, and Host decides nothing here",
    ("OPTIONS *", "nginx"): "the RFC's own form; answered 404, forwarded to no worker",
    ("RTSP/1.0", "nginx"): "llhttp takes it for HTTP/1.0 and hides it; the worker gets HTTP/1.1 from us",
    (
        "an offer of h2c with chunks",
        "uvicorn",
    ): "uvicorn reads what follows as h2c; RFC 9110, 7.8 lets us go on",
    (
        "a whole URL with a path as its query",
        "uvicorn",
    ): "uvicorn refuses it; for us its path is /, which is 404",
}
"""Cases where kvgate forwards more than that server, with the reason. No case is laxer than both."""

READ_OTHERWISE = {
    ("an offer of h2c", "uvicorn"): "uvicorn takes the body for h2c and hands on an empty one",
}
"""Cases where kvgate forwards as much as that server, but not the same."""


@pytest.fixture(scope="module")
def nginx() -> dict[str, tuple[str, Reading]]:
    return recorded()[1]


def test_the_recorded_answers_of_nginx_are_of_the_current_cases(
    nginx: dict[str, tuple[str, Reading]],
) -> None:
    """Where this fails: `python -m tests.conformance.others`, on a machine with nginx."""
    assert {name: sent for name, (sent, _) in nginx.items()} == {case.name: digest(case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_kvgate_is_no_laxer_than_nginx_or_uvicorn(
    case: Case, nginx: dict[str, tuple[str, Reading]]
) -> None:
    servers = {"nginx": nginx[case.name][1], "uvicorn": await ask_uvicorn(case.data)}
    ours = bodies([handed(target, body) for _, target, body in run(case, [case.data]).handed])
    laxer = {name for name, other in servers.items() if len(ours) > len(other.handed)}
    assert laxer != servers.keys()
    assert laxer == {name for known, name in LAXER if known == case.name}
    otherwise = {
        name
        for name, other in servers.items()
        if len(ours) == len(other.handed) and ours != bodies(other.handed)
    }
    assert otherwise == {name for known, name in READ_OTHERWISE if known == case.name}


def bodies(requests: list[str] | tuple[str, ...]) -> list[str]:
    """Bodies without targets, which are compared by eye, in the page:

    whole URLs are written in several ways.
    """
    return [request.partition(" ")[2] for request in requests]


def test_the_page_is_up_to_date() -> None:
    """Where this fails: `make docs`."""
    assert (ROOT / "docs/reference/http.md").read_text() == page()
