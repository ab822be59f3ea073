"""Bodies for a worker that serves the client's model under another name."""

import msgspec
import pytest

from gateway.requests.model_alias import renamed


@pytest.mark.parametrize("name", ["org/name", 'with "quotes"', "中文"])
def test_only_the_model_is_replaced(name: str) -> None:
    body = b'{"messages": [{"role":"user","content":"a\\u00e9 1e3"}], "model" : "gpt", "temperature":1.50}'
    renamed_body = msgspec.json.decode(renamed(body, name))
    assert renamed_body == {**msgspec.json.decode(body), "model": name}
    assert b'[{"role":"user","content":"a\\u00e9 1e3"}]' in renamed(body, name)
    assert b"1.50" in renamed(body, name)
