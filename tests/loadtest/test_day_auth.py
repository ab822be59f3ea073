"""The figure `day.auth_cpu_us`, and its definition."""

from loadtest.day_auth import KEYED, PLAIN, SALTED, AuthCost, figures


def round_of(plain: float, keyed: float, salted: float) -> dict[str, AuthCost]:
    costs = {PLAIN: plain, KEYED: keyed, SALTED: salted}
    return {name: AuthCost(us * 100, 100) for name, us in costs.items()}


def test_the_cost_of_a_key_is_a_difference_within_a_round() -> None:
    medians = [{PLAIN: 8.0, KEYED: 10.0, SALTED: 10.5}, {PLAIN: 16.0, KEYED: 19.5, SALTED: 20.0}]
    found = {figure.name: figure for figure in figures(medians, [round_of(50, 52, 53), round_of(90, 99, 99)])}
    assert found["day.auth_cpu_us"].rounds == [2.0, 3.5]
    assert (found["day.auth_cpu_us"].value, found["day.auth_cpu_us"].goal) == (2.0, 3.0)
    assert found["day.auth_with_salt_cpu_us"].rounds == [2.5, 4.0]
    assert found["day.auth_gateway_ratio"].rounds == [1.04, 1.1]
