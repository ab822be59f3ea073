from gateway.core.pace import TYPICAL, Pace


def test_the_first_token_waits_for_all_tokens_ahead() -> None:
    pace = Pace(start_s=0.5, token_s=0.001, seq_s=0.000_1, step_s=0.01)
    assert pace.ttft_s(0, 100) == 0.5
    assert pace.ttft_s(1000, 0) == 1.5
    assert pace.ttft_s(1000, 10) == 2.5


def test_more_work_never_takes_less_time() -> None:
    assert TYPICAL.ttft_s(100, 0) < TYPICAL.ttft_s(200, 0) <= TYPICAL.ttft_s(200, 1)
