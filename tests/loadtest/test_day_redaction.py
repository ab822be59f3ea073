"""Search for clients' data in outputs: it finds planted data, and none in a real gateway's."""

import base64

import pytest

from loadtest.day_redaction import Canaries, measure


def test_words_are_found_in_each_form() -> None:
    canaries = Canaries()
    word = canaries.plant("prompt")
    encoded = base64.b64encode(f"ab{word}cd".encode())
    texts = {"log": f"x{word}y".encode(), "hex": word.encode().hex().encode(), "b64": encoded, "clean": b"x"}
    assert canaries.found(texts) == ["prompt in log", "prompt in hex", "prompt in b64"]


@pytest.mark.process
def test_a_gateway_that_logs_clients_data_is_caught() -> None:
    leaks, control = measure()
    assert leaks.value == 0 and control.value > 0
