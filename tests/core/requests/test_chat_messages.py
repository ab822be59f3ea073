import msgspec

from gateway.core.requests.chat_messages import Messages


def test_known_messages_are_decoded_again_on_demand_only() -> None:
    raws = [msgspec.Raw(b'{"role":"user","content":"%d"}' % i) for i in range(3)]
    new = [{"role": "user", "content": "2"}]
    chat = Messages(raws, [b"a", b"b", b"c"], b"s", 2, {"model": "m"}, new)
    assert chat.decode(2) is new
    assert [message["content"] for message in chat.decode(1)] == ["1", "2"]
    assert repr(chat) == "Messages(3, 2 known)"
