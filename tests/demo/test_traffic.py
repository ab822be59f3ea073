"""Traffic of the demo: its kinds, its order, and what its requests share."""

from itertools import islice, pairwise, takewhile

from gateway.demo.traffic import TURNS, DemoRequest, traffic


def minute(seed: int = 1) -> list[DemoRequest]:
    return list(takewhile(lambda request: request.at_s < 60, traffic(seed)))


def test_requests_come_in_order_and_are_a_function_of_the_seed() -> None:
    assert all(one.at_s <= next.at_s for one, next in pairwise(minute()))
    assert minute() == minute()
    assert minute() != minute(2)


def test_a_minute_has_each_kind() -> None:
    kinds = [request.kind for request in minute()]
    assert {kind: kinds.count(kind) > 20 for kind in kinds} == {"agent": True, "document": True, "chat": True}


def test_an_agents_turn_extends_the_one_before() -> None:
    agents = [request.body["messages"] for request in minute() if request.kind == "agent"]
    by_task: dict[str, list[list[dict[str, object]]]] = {}
    for messages in agents:
        by_task.setdefault(messages[1]["content"], []).append(messages)
    assert max(map(len, by_task.values())) > TURNS[0]
    for turns in by_task.values():
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
            assert [message["role"] for message in after[len(before) :]] == ["assistant", "tool"]


def test_agents_share_one_of_two_beginnings_and_questions_one_of_six_documents() -> None:
    found = minute()
    systems = {request.body["messages"][0]["content"] for request in found if request.kind == "agent"}
    assert len(systems) == 2
    documents = [r.body["messages"][0]["content"].split("\n\n")[0] for r in found if r.kind == "document"]
    assert 1 < len(set(documents)) <= 6 < len(documents)


def test_the_traffic_has_no_end() -> None:
    assert len(list(islice(traffic(), 3000))) == 3000
