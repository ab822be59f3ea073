"""Models with a tokenizer class beside their tokenizer.json, and the tokens that transformers makes of texts.

`python -m tests.vllm.test_tokenizer_class` writes the golden file, with the python of vLLM.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.app import bundled_tokenizer
from gateway.tokenization.tokenizer import SAMPLES
from tests import ROOT

GOLDEN: Final = ROOT / "tests" / "data" / "tokenizer_classes.json"
TEXTS: Final[Sequence[str]] = (
    *SAMPLES,
    "In 1984: x",
    "<|im_start|>user\nHi 123<|im_end|>\n",
    "x <|im_end|> 12  34",
    "\u2581a \u2581b",
    "<s>a</s> <unk>b<bos>c<eos> <pad>d<mask>",
)
DIGITS: Final[Mapping[str, Any]] = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
"""Pre-tokenizer as SmolLM2 has it, which its class leaves out."""
END: Final = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
FRAME: Final[Mapping[str, Any]] = {
    "type": "TemplateProcessing",
    "single": [END, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [2], "tokens": ["<|im_end|>"]}},
}
"""Post-processor, which its class keeps."""

KINDS: Final[Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]]] = {
    "SmolLM2": ("llama", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "SmolLM2, framed": ("llama", {"tokenizer_class": "GPT2TokenizerFast"}, {"post_processor": FRAME}),
    "GPT-2 with a space": ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, {}),
    "GPT-2 by its type": ("gpt2", {}, {}),
    "Llama 2": ("llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, {}),
    "Vicuna": ("llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}, {}),
    "Yi": ("llama", {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": False}, {}),
    "R1-Distill": (
        "llama",
        {"tokenizer_class": "LlamaTokenizerFast", "legacy": True},
        {"post_processor": FRAME},
    ),
    "R1-Distill of Qwen": ("qwen2", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "Qwen 3": ("qwen3", {"tokenizer_class": "Qwen2Tokenizer"}, {}),
    "Qwen 3 with a space": ("qwen3", {"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": True}, {}),
    "Gemma 2": ("gemma2", {"tokenizer_class": "GemmaTokenizer"}, {}),
    "Llama 3": ("llama", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "Phi 3": ("phi3", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "DeepSeek V3": ("deepseek_v3", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "no class": ("llama", {}, {}),
    "an unknown class": ("llama", {"tokenizer_class": "MyTokenizer"}, {}),
    "added tokens": (
        "llama",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "added_tokens_decoder": {"8192": {"content": "1984", "special": False, "normalized": False}},
        },
        {},
    ),
}
"""Kinds of models: model type, fields of tokenizer_config.json, and of tokenizer.json."""


def write_model(directory: Path, kind: str) -> Path:
    """Directory with a model of a kind."""
    model_type, config, changed = KINDS[kind]
    directory.mkdir(parents=True)
    fields = json.loads((bundled_tokenizer() / "tokenizer.json").read_text("utf-8"))
    fields |= {"pre_tokenizer": DIGITS, **changed}
    usual = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    usual["chat_template"] = "{{ messages[0].content }}"
    for name, content in (
        ("tokenizer.json", fields),
        ("tokenizer_config.json", {**usual, **config}),
        ("config.json", {"model_type": model_type}),
    ):
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


def digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]
