from gateway.core.speed import TYPICAL, Speed


def test_the_first_token_waits_for_all_tokens_ahead() -> None:
    speed = Speed(start_s=0.5, token_s=0.001, seq_s=0.000_1, step_s=0.01)
    assert speed.ttft_s(0, 100) == 0.5
    assert speed.ttft_s(1000, 0) == 1.5
    assert speed.ttft_s(1000, 10) == 2.5


def test_running_answers_delay_a_first_token_without_tokens_ahead() -> None:
    assert Speed(start_s=0.5, start_seq_s=0.001).ttft_s(0, 100) == 0.6


def test_a_seat_is_free_when_enough_answers_have_ended() -> None:
    speed = Speed(step_s=0.02, step_seq_s=0.0001, answer_tokens=100.0, max_running=200.0)
    assert speed.interval_s(200) == 100 * (0.02 / 200 + 0.0001) == 0.02
    assert [speed.wait_s(number) for number in (0, 199, 200, 249)] == [0, 0, 0.02, 1.0]
    assert TYPICAL.wait_s(10_000) == 0


def test_more_work_never_takes_less_time() -> None:
    assert TYPICAL.ttft_s(100, 0) < TYPICAL.ttft_s(200, 0) <= TYPICAL.ttft_s(200, 1)
