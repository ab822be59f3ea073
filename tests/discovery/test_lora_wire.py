"""Answers of vLLM 0.32 and SGLang to the loading of adapters, and of servers in front of them."""

import pytest

from gateway.core.engine import AdapterCalls
from gateway.discovery.lora_wire import AdapterCallResult, check_name, load_body, outcome, unload_body

NO_ROUTE = "no /load: start the engine with --enable-lora to load adapters"
CALLS = AdapterCalls("/load", "/unload", "--enable-lora")


def test_request_bodies_are_those_of_both_engines() -> None:
    assert load_body("a", "/p") == {"lora_name": "a", "lora_path": "/p"}
    assert unload_body("a") == {"lora_name": "a"}


@pytest.mark.parametrize(
    ("status", "body", "is_done", "message"),
    [
        (200, b"Success: LoRA adapter 'a' added.", True, "Success: LoRA adapter 'a' added."),
        (200, b'"done so"', True, "done so"),
        (200, b'{"success":true,"error_message":null,"loaded_adapters":{"a":"/p"}}', True, "done"),
        (400, b'{"success":false,"error_message":"no room"}', False, "answered 400: no room"),
        (400, b'{"error":{"message":"conflicts","type":"x"}}', False, "answered 400: conflicts"),
        (404, b'{"error":{"message":"No adapter for /p"}}', False, "answered 404: No adapter for /p"),
        (404, b'{"detail":"Not Found"}', False, NO_ROUTE),
        (404, b'{"error":{"message":"Not Found"}}', False, NO_ROUTE),
        (404, b"", False, NO_ROUTE),
        (405, b'{"detail":"Method Not Allowed"}', False, NO_ROUTE),
        (401, b'{"error":"Unauthorized"}', False, "answered 401: Unauthorized"),
        (502, b"<html>\xff", False, "answered 502: <html>\ufffd"),
        (500, b"[1]", False, "answered 500"),
        (500, b'{"error":{}}', False, "answered 500"),
    ],
)  # fmt: skip
def test_an_answer_is_read_as_its_outcome(status: int, body: bytes, is_done: bool, message: str) -> None:
    assert outcome(status, body, "/load", CALLS) == AdapterCallResult(is_done, message)


def test_a_long_answer_is_cut() -> None:
    assert len(outcome(500, b"x" * 10_000, "/load", CALLS).message) < 600


@pytest.mark.parametrize("name", ["", " a", "a\n", "a" * 257, "\x1b[2J"])
def test_a_name_that_cannot_be_printed_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="adapter: give 1 to 256 printable characters"):
        check_name(name)
    assert check_name("org/a b") == "org/a b"
