from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.replay.profile import H100_8B, H100_70B, Profile, profile_of


@pytest.mark.parametrize("profile", [H100_8B, H100_70B])
def test_a_step_with_a_prompt_is_longer(profile: Profile) -> None:
    assert profile.seq_s < profile.step_s < profile.max_batched_tokens / profile.prefill_tokens_per_s


def test_a_profile_is_named_or_a_file(tmp_path: Path) -> None:
    assert profile_of("h100-8b") is H100_8B
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nprefill_tokens_per_s = 5000\nkv_tokens = 100000\n')
    mine = profile_of(str(path))
    assert (mine.name, mine.prefill_tokens_per_s, mine.step_s) == ("mine", 5000, H100_8B.step_s)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "unknown field"),
        ("step_s = inf", "step_s"),
        ("prefill_tokens_per_s = 1e-300", "prefill_tokens_per_s"),
        ("kv_tokens = 9_000_000_000_000_000_000", "kv_tokens"),
        ("step_s = 0", ">= 1e-06"),
        ("step_s = ", "mine.toml"),
        ("seq_s = 1.0", "exceeds step_s"),
    ],
)
def test_a_mistake_in_a_profile_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        profile_of(str(path))


@pytest.mark.parametrize("name", ["h200", "missing.toml"])
def test_an_unknown_profile_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        profile_of(name)
