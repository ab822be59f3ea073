from gateway.decide.metrics import DecideCollector


def test_events_and_open_decisions_are_shown() -> None:
    events, open_now = DecideCollector({"decided": 2}, lambda: 1).collect()
    assert [(list(each.labels.values()), each.value) for each in events.samples] == [(["decided"], 2.0)]
    assert open_now.samples[0].value == 1.0
