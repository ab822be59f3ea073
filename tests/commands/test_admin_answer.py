import aiohttp
import msgspec
import pytest
from aiohttp.client_reqrep import ConnectionKey

from gateway.commands.admin_answer import check_answer, refusal, unreachable
from gateway.core.errors import ConfigError

URL = "http://127.0.0.1:9400"
REFUSED = aiohttp.ClientConnectorError(
    ConnectionKey("127.0.0.1", 9400, False, True, None, None, None),
    OSError(111, "Connect call failed ('127.0.0.1', 9400)"),
)


@pytest.mark.parametrize(
    ("exc", "cause"),
    [
        (REFUSED, "cannot connect: Connection refused; is a gateway running there?"),
        (TimeoutError(), "no answer in time"),
        (msgspec.DecodeError("x"), "its answer is not JSON; another server answers there"),
        (aiohttp.InvalidURL("x"), "it is not a URL, as in"),
        (aiohttp.NonHttpUrlClientError("localhost:9400/admin/workers"), "it is not a URL, as in"),
    ],
)
def test_a_gateway_that_cannot_be_asked_is_named_with_the_cause(exc: Exception, cause: str) -> None:
    assert str(unreachable(URL, exc)).startswith(f"--gateway {URL}: not a gateway's admin address: {cause}")


@pytest.mark.parametrize("answer", [{}, [], "x", None, {"object": "list"}])
def test_an_answer_of_another_server_is_recognised(answer: object) -> None:
    with pytest.raises(ConfigError, match="its answer has no endpoints; another server answers there"):
        check_answer(URL, answer, "endpoints")
    check_answer(URL, {"endpoints": []}, "endpoints")


@pytest.mark.parametrize(
    "answer",
    [
        {"detail": "Not Found"},
        {"error": {"message": "Not Found", "code": 404}},
        {"object": "error", "message": "x"},
        {"error": "x"},
        {"error": {"code": "x"}},
        None,
        [],
    ],
)
def test_an_error_of_another_server_is_never_an_empty_reason(answer: object) -> None:
    words = refusal(URL, 404, answer)
    assert words.startswith(f"{URL} answers 404 (Not Found) and is not a gateway's admin address: another ")


def test_an_error_of_a_gateway_is_shown() -> None:
    assert refusal(URL, 404, {"error": {"message": "gone"}}) == "the gateway answers 404: gone"
    answer = {"error": {"message": "closed", "code": "admin_closed"}}
    assert refusal(URL, 403, answer, "would answer") == "the gateway would answer 403: closed"
    assert "599 (no standard status)" in refusal(URL, 599, {})
