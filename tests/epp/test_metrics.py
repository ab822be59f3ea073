from gateway.epp.metrics import EppCollector


def test_events_and_unseen_answers_are_shown() -> None:
    events, unseen = EppCollector({"picked": 2}, lambda: 1).collect()
    assert [(list(each.labels.values()), each.value) for each in events.samples] == [(["picked"], 2.0)]
    assert unseen.samples[0].value == 1.0
