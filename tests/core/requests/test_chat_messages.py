import msgspec

from gateway.core.requests.chat_messages import Messages


def test_what_is_known_is_decoded_again_only_where_it_is_asked_for() -> None:
    raws = [msgspec.Raw(b'{"role":"user","content":"%d"}' % i) for i in range(3)]
    new = [{"role": "user", "content": "2"}]
    chat = Messages(raws, [b"a", b"b", b"c"], b"s", 2, {"model": "m"}, new)
    assert chat.decode(2) is new
    assert [message["content"] for message in chat.decode(1)] == ["1", "2"]
    assert repr(chat) == "Messages(3, 2 known)"
