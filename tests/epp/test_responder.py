from gateway.core.errors import NoWorker, WorkerTimeout
from gateway.epp.responder import PickResponder
from gateway.http.messages import Header, HttpRequest, ResponseHead


def _responder() -> tuple[PickResponder, list[tuple[int, list[Header], bytes]]]:
    refused: list[tuple[int, list[Header], bytes]] = []
    http = HttpRequest("POST", b"/v1/completions", [])
    return PickResponder(http, lambda *what: refused.append(what)), refused


def test_an_error_before_the_pick_is_an_immediate_response_once() -> None:
    responder, refused = _responder()
    responder.fail(NoWorker("none", retry_after_s=2))
    responder.fail(NoWorker("again"))
    ((status, headers, body),) = refused
    assert status == 503 and (b"retry-after", b"2") in headers and b"no_worker" in body


def test_a_worker_that_is_too_late_is_answered_for() -> None:
    responder, refused = _responder()
    responder.is_picked = True
    responder.fail(WorkerTimeout("late"))
    assert [status for status, _, _ in refused] == [504]


def test_an_answer_that_has_begun_is_cut_without_another_text() -> None:
    responder, refused = _responder()
    responder.head(ResponseHead(200, []))
    responder.fail(NoWorker("none"))
    responder.end_in_error(b"held", NoWorker("cut"), b"7")
    responder.abort()
    assert refused == [(502, [], b""), (502, [], b"")]


def test_the_answer_is_collected_until_it_is_taken() -> None:
    responder, _ = _responder()
    responder.more_headers = [(b"x-more", b"1")]
    responder.head(ResponseHead(200, [(b"a", b"b")]))
    responder.data(b"1")
    responder.end(b"2")
    assert responder.take() == b"12" and responder.take() == b""
    assert responder.passed_head is not None
    assert responder.passed_head.headers == [(b"a", b"b"), (b"x-more", b"1")]
    assert responder.peer is None and not responder.client_is_full
