import msgspec
import pytest

from gateway.core.chat_messages import Messages
from gateway.core.errors import InvalidRequest


def test_known_messages_are_decoded_again_on_demand_only() -> None:
    raws = [msgspec.Raw(b'{"role":"user","content":"%d"}' % i) for i in range(3)]
    new = [{"role": "user", "content": "2"}]
    chat = Messages(raws, [b"a", b"b", b"c"], b"s", 2, {"model": "m"}, new)
    assert chat.decode(2) is new
    assert [message["content"] for message in chat.decode(1)] == ["1", "2"]
    assert repr(chat) == "Messages(3, 2 known)"


@pytest.mark.parametrize("broken", [b'{"role":"u","content":nul}', b'{"role":"u","content":"\xff"}'])
def test_broken_messages_of_a_large_body_are_the_client_s_fault(broken: bytes) -> None:
    """They are decoded after the request was accepted, where they are long."""
    chat = Messages([msgspec.Raw(broken)], [b"a"], b"s", 0, {"model": "m"}, None)
    with pytest.raises(InvalidRequest, match=r"a message is not valid JSON: messages\[0\]: .*byte 2\d"):
        chat.decode(0)
