from gateway.core.session_id import short


def test_long_ids_are_shortened_and_stay_different() -> None:
    long = ["x" * 100_000, "x" * 99_999 + "y", "\ud800" * 65]
    assert len({short(name) for name in long}) == 3
    assert {len(short(name) or "") for name in long} == {32}
    assert (short("x" * 64), short(""), short(None)) == ("x" * 64, None, None)
