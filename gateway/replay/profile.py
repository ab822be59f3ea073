"""An engine's hardware and model, as its simulation needs them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """`step_s` is a step that decodes one sequence alone, `seq_s` what each more adds; `kv_tokens` fit its
    cache."""

    name: str
    prefill_tokens_per_s: float
    step_s: float
    seq_s: float
    kv_tokens: int
    transfer_tokens_per_s: float
    transfer_s: float = 0.01
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256


H100_8B = Profile("h100-8b", 22_000, 0.008, 0.000_1, 400_000, 90_000)
"""Llama 3.1 8B in bf16 on one H100: 16 GB of weights at 3.35 TB/s are 5 ms of a step, with launches and
attention 8; 16 TFLOP per thousand tokens at some 40 % of 990 TFLOP/s; 55 GB of cache at 128 KiB a token; a
link of 100 Gbit/s."""
H100_70B = Profile("h100x4-70b", 8_000, 0.022, 0.000_2, 350_000, 36_000)
"""Llama 3.1 70B on four: 35 GB of weights each are 11 ms, with all-reduces 22; 320 KiB a token."""
