from loadtest.workloads.conversations import Conversations


def test_the_same_seed_gives_the_same_conversation() -> None:
    assert Conversations("m", 5).messages(3_000) == Conversations("m", 5).messages(3_000)
    assert Conversations("m", 5).messages(3_000) != Conversations("m", 6).messages(3_000)


def test_a_conversation_begins_with_the_system_and_ends_with_the_user() -> None:
    roles = [message["role"] for message in Conversations("m").messages(5_000)]
    assert roles[0] == "system"
    assert roles[-1] == "user"
    assert "assistant" in roles


def test_each_turn_holds_the_one_before() -> None:
    turns = list(Conversations("m").turns(4))
    for before, after in zip(turns, turns[1:], strict=False):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert len(after["messages"]) == len(before["messages"]) + 2
