"""Profile of an engine's hardware and model, as its simulation needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Profile:
    """Speeds and sizes of an engine. `step_s` is a step that decodes one sequence alone, `seq_s` is added by
    each more; `kv_tokens` fit its cache. `overhead_s` is the time of a request beside the engine's steps:
    connections, parsing, detokenizing; one of `noise_s` is added by chance."""

    name: str
    prefill_tokens_per_s: float
    step_s: float
    seq_s: float
    kv_tokens: int
    transfer_tokens_per_s: float
    transfer_s: float = 0.01
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256
    overhead_s: float = 0.0
    noise_s: Sequence[float] = ()


H100_8B = Profile("h100-8b", 22_000, 0.008, 0.000_1, 400_000, 90_000)
"""Llama 3.1 8B in bf16 on one H100: 16 GB of weights at 3.35 TB/s are 5 ms of a step, with launches and
attention 8; 16 TFLOP per thousand tokens at some 40 % of 990 TFLOP/s; 55 GB of cache at 128 KiB a token; a
link of 100 Gbit/s."""
H100_70B = Profile("h100x4-70b", 8_000, 0.022, 0.000_2, 350_000, 36_000)
"""Llama 3.1 70B on four: 35 GB of weights each are 11 ms, with all-reduces 22; 320 KiB a token."""

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (H100_8B, H100_70B)}


def profile_of(name: str) -> Profile:
    """Profile by name: a key of `PROFILES`, or a TOML file with the fields of a Profile. Raises
    ConfigError."""
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name)
    if path.suffix != ".toml":
        known = ", ".join(PROFILES)
        raise ConfigError(f"--profile {name}: give one of {known}, or a TOML file with the fields of one")
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=_Fields)
    except (OSError, msgspec.DecodeError) as exc:
        raise ConfigError(f"--profile {name}: {cause_of(exc)}") from exc
    if profile.seq_s > profile.step_s:
        raise ConfigError(
            f"--profile {name}: seq_s (added by each sequence) exceeds step_s (one sequence alone)"
        )
    return Profile(**msgspec.structs.asdict(profile))


_SECONDS = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_NOISE_S = Annotated[float, msgspec.Meta(ge=-3600, le=3600)]
_SPEED = Annotated[float, msgspec.Meta(ge=1e-3, le=1e12)]
_STEP_S = Annotated[float, msgspec.Meta(ge=1e-6, le=3600)]
_COUNT = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a profile's file; missing ones are as in `H100_8B`."""

    name: str = "file"
    prefill_tokens_per_s: _SPEED = H100_8B.prefill_tokens_per_s
    step_s: _STEP_S = H100_8B.step_s
    seq_s: _SECONDS = H100_8B.seq_s
    kv_tokens: _COUNT = H100_8B.kv_tokens
    transfer_tokens_per_s: _SPEED = H100_8B.transfer_tokens_per_s
    transfer_s: _SECONDS = H100_8B.transfer_s
    max_batched_tokens: _COUNT = H100_8B.max_batched_tokens
    max_num_seqs: _COUNT = H100_8B.max_num_seqs
    overhead_s: _SECONDS = H100_8B.overhead_s
    noise_s: tuple[_NOISE_S, ...] = ()
