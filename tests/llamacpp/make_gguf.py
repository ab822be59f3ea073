"""Program that makes llama.cpp's model file of the small random Llama and its byte-level tokenizer.

    make_gguf.py MODEL_DIR OUT.gguf

It needs torch, safetensors and numpy (SGLang's environment has them), and `gguf` of llama.cpp's own sources
on PYTHONPATH.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open

WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
OF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("m")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config).get("rope_theta", 10_000.0))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, model: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    names = [f"[PAD{i}]".encode() for i in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(names)
    for name, number in {**tokenizer["model"]["vocab"], **special}.items():
        names[number] = name.encode()
        types[number] = gguf.TokenType.CONTROL if name in special else gguf.TokenType.NORMAL
    merges = [each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")  # byte-level BPE
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    writer.add_chat_template(settings["chat_template"])


def interleaved(weights: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The halves of each head interleaved, as llama.cpp rotates them."""
    shape = (num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)


def add_weights(writer: gguf.GGUFWriter, model: Path, config: dict[str, Any]) -> None:
    num_heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no mapping
            weights = file.get_tensor(name).to(torch.float32)
            if name in WHOLE:
                renamed = WHOLE[name]
            else:
                _, _, layer, part = name.removesuffix(".weight").split(".", 3)
                renamed = f"blk.{layer}.{OF_LAYER[part]}.weight"
                if num := num_heads.get(part.rpartition(".")[2]):
                    weights = interleaved(weights, num)
            values = weights.numpy()
            writer.add_tensor(renamed, values if values.ndim == 1 else values.astype(np.float16))


def main() -> None:
    model, out = Path(sys.argv[1]), sys.argv[2]
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    add_shape(writer, config)
    add_tokenizer(writer, model, config)
    add_weights(writer, model, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
