"""Flags and limits."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from engines.sim.config import SimConfig, add_flags, from_args


def parse(*arguments: str) -> SimConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return from_args(parser.parse_args(arguments))


def test_no_flags_are_the_defaults() -> None:
    assert parse() == SimConfig()


def test_every_field_is_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    shown = parser.format_help()
    assert all(f"--{field.name.replace('_', '-')}" in shown for field in fields(SimConfig))


def test_flags_of_every_kind() -> None:
    config = parse(
        "--port", "8001", "--lora", "a", "--lora", "b", "--no-events", "--hash", "bytes", "--tokenizer", "/x",
        "--api-key", "k", "--decode-tokens-per-s", "12.5", "--event-wire", "array",
    )  # fmt: skip
    expected = SimConfig(
        port=8001, lora=("a", "b"), events=False, hash="bytes", tokenizer=Path("/x"), api_key="k",
        decode_tokens_per_s=12.5, event_wire="array",
    )  # fmt: skip
    assert config == expected


def test_an_unknown_choice_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--hash", "md5")
    assert "--hash" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_blocks": 1}, "kv_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"dp_size": 0}, "dp_size"),
        ({"decode_tokens_per_s": 0.0}, "speeds"),
        ({"decode_batch_cost": 1.5}, "decode_batch_cost"),
        ({"kv_blocks": 10, "max_model_len": 1000}, "max_model_len"),
    ],
)
def test_an_invalid_value_is_rejected(changes: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SimConfig(**changes)  # type: ignore[arg-type]


def test_the_context_length_is_bounded_by_the_cache() -> None:
    assert SimConfig(kv_blocks=11, block_size=16).context_tokens == 160
    assert SimConfig(kv_blocks=100_000).context_tokens == 32_768
    assert SimConfig(max_model_len=100).context_tokens == 100


@pytest.mark.parametrize(
    "given",
    [
        {"transfer_tokens_per_s": 0.0},
        {"lease_s": -1.0},
        {"tp_size": 0},
        {"pd_role": "both", "pd_protocol": "shared_storage"},
    ],
)
def test_invalid_transfers_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must|needs"):
        SimConfig(**given)
