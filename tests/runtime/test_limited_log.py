from gateway.runtime.limited_log import Limited


def test_the_first_is_logged_at_once_and_the_others_are_summed() -> None:
    limited = Limited(every_s=60.0)
    assert [limited.count("a", now) for now in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0)] == [1, 0, 0, 3, 0, 2]


def test_subjects_do_not_silence_each_other() -> None:
    limited = Limited()
    assert (limited.count("a", 0.0), limited.count("b", 0.0), limited.count("a", 0.0)) == (1, 1, 0)


def test_subjects_are_bounded() -> None:
    limited = Limited(max_subjects=2)
    for name in ("a", "b", "a", "c"):
        limited.count(name, 0.0)
    assert repr(limited) == "Limited(2 subjects)"
    assert limited.count("a", 0.0) == 0, "it was seen later than b"
    assert limited.count("b", 0.0) == 1
