from gateway.core.requests.session_id import short


def test_long_names_are_kept_short_and_apart() -> None:
    long = ["x" * 100_000, "x" * 99_999 + "y", "\ud800" * 65]
    assert len({short(name) for name in long}) == 3
    assert {len(short(name) or "") for name in long} == {32}
    assert (short("x" * 64), short(""), short(None)) == ("x" * 64, None, None)
