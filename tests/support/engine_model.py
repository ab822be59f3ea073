"""The small model of random weights that real engines serve, and LoRA adapters for it."""

import json
import os
import random
import struct
import subprocess
from itertools import product
from pathlib import Path

from tests.support.engine_process import ROOT

MODEL = ROOT / ".cache" / "model"


def ensure_model(python: Path, model: Path = MODEL) -> Path:
    """The random-weight model, made once with an engine's `python`, which has torch and transformers."""
    if not (model / "config.json").exists():
        partial = model.with_name(f"{model.name}.{os.getpid()}")
        maker = [python, ROOT / "tests" / "vllm" / "make_model.py", partial]
        model.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(maker, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        partial.rename(model)  # complete or not there
    return model


def make_adapter(directory: Path) -> Path:
    """A LoRA adapter with random weights for our model, in the files that PEFT writes."""
    rng = random.Random(directory.name)
    tensors: dict[str, object] = {}
    data = b""
    for layer, (module, width) in product(range(8), (("q_proj", 512), ("v_proj", 256))):
        for half, shape in (("A", (8, 512)), ("B", (width, 8))):
            values = [rng.uniform(-0.05, 0.05) for _ in range(shape[0] * shape[1])]
            packed = struct.pack(f"<{len(values)}f", *values)
            place = [len(data), len(data) + len(packed)]
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{half}.weight"
            tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": place}
            data += packed
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "bias": "none"}
    config |= {"target_modules": ["q_proj", "v_proj"], "inference_mode": True}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    header = json.dumps(tensors).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return directory
