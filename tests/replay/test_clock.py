from gateway.replay.clock import STEP, Clock


def test_callbacks_run_in_order_and_see_their_time() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, lambda: seen.append(("b", clock.now)))
    clock.at(1.0, lambda: clock.at(1.5, lambda: seen.append(("a", clock.now))))
    assert not clock.is_idle
    clock.run()
    assert seen == [("a", 1.5), ("b", 2.0)] and clock.is_idle


def test_steps_end_after_all_other_callbacks_of_their_time() -> None:
    clock, seen = Clock(), []
    clock.at(1.0, lambda: seen.append("step"), STEP)
    clock.at(1.0, lambda: seen.append("first"))
    clock.at(1.0, lambda: seen.append("second"))
    clock.run()
    assert seen == ["first", "second", "step"]
