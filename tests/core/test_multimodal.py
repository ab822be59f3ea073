from typing import Any

import pytest

from gateway.core.multimodal import MEDIUM_TOKENS, first_medium, links, media_endings

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
SYSTEM = {"role": "system", "content": "Be brief."}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def hashes(*messages: dict[str, Any], root: bytes = b"") -> list[int]:
    return list(links(messages, root).hashes)


def test_the_first_medium_is_found_in_any_message() -> None:
    assert first_medium([SYSTEM, user("a", {"type": "text", "text": "b"}), user("c", IMAGE, IMAGE)]) == (2, 1)
    assert first_medium([{"role": "user"}, {"role": "user", "content": "image_url"}]) is None


def test_links_begin_at_the_first_medium_and_continue_with_the_conversation() -> None:
    turn = [SYSTEM, user("Look:", IMAGE, "What is it?")]
    found = links(turn, b"")
    assert (len(found.hashes), found.num_tokens) == (2, [MEDIUM_TOKENS, len('"What is it?"') // 4])
    assert hashes(*turn, {"role": "assistant", "content": "A cat."}, user("Sure?"))[:2] == found.hashes
    assert len(set(hashes(*turn, user(IMAGE, IMAGE)))) == 4


@pytest.mark.parametrize(
    "other",
    [
        [SYSTEM, user("Look:", IMAGE | {"image_url": {"url": "https://example.org/dog.png"}})],
        [SYSTEM, user("Look!", IMAGE)],
        [user("Look:", IMAGE)],
        [SYSTEM, {"role": "assistant", "content": ["Look:", IMAGE]}],
        [SYSTEM, user("Look:", {"type": "input_audio", "input_audio": IMAGE["image_url"]})],
        [SYSTEM, user("Look:", IMAGE | {"uuid": "cat"})],
    ],
)
def test_a_difference_before_or_in_a_medium_makes_another_link(other: list[dict[str, Any]]) -> None:
    assert not set(hashes(SYSTEM, user("Look:", IMAGE))) & set(hashes(*other))


def test_a_uuid_identifies_a_medium_as_in_the_engine() -> None:
    by_url = user(IMAGE | {"uuid": "cat"})
    by_data = user({"type": "image_url", "image_url": None, "uuid": "cat"})
    assert hashes(by_url) == hashes(by_data)
    assert hashes(by_url, root=b"salt") != hashes(by_url)


def test_endings_exist_with_the_medium_and_without() -> None:
    text = {"type": "text", "text": "Look:"}
    shown = [ending[0]["content"] for ending in media_endings("user", [text], {"type": "input_audio"})]
    assert [[part["type"] for part in content] for content in shown[::2]] == [
        ["text", "audio"],
        ["text", "audio", "text"],
        ["text", "text"],
    ]
    assert [len(ending) for ending in media_endings("user", "Look:", IMAGE)] == [1, 3]
    assert all("Look" not in str(ending) for ending in media_endings("user", "Look:", IMAGE))
