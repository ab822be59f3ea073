import pytest

from gateway.replay.profile import H100_8B, H100_70B, Profile


@pytest.mark.parametrize("profile", [H100_8B, H100_70B])
def test_a_step_takes_longest_with_a_prompt(profile: Profile) -> None:
    assert profile.seq_s < profile.step_s < profile.max_batched_tokens / profile.prefill_tokens_per_s
