"""Registry of renderers by model family. Models outside all of them are tokenized by their workers.

jinja        a chat template and tokenizer.json, as nearly all models have
(`tokenization/prompt_encoder.py`)
harmony      gpt-oss
mistral      Mistral's own format, tekken.json
unavailable  a stand-in where there is none

SGLang has an encoder of its own (`tokenization/sglang.py`) in place of the first two, MLX one
(`tokenization/mlx.py`) in place of the first.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.core.decode_errors import UNREADABLE
from gateway.core.rendering import Rendering
from gateway.tokenization import harmony, mistral
from gateway.tokenization.base import Renderer
from gateway.tokenization.chat_template import NotRendered
from gateway.tokenization.mlx import MlxEncoder
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.sglang import SglangEncoder

Load = Callable[[Path, str | None], Renderer]
"""Loads a renderer from a model's directory, and the text of a chat template in place of its own. Raises
PromptError."""

RENDERERS: Mapping[str, Load] = {
    "jinja": PromptEncoder.load,
    "harmony": harmony.load,
    "mistral": mistral.load,
}

FAMILIES = {"gpt_oss": "harmony"}
"""Renderers by `model_type` of config.json, as vLLM selects them."""


def load(
    rendering: Rendering,
    kind: str,
    directory: Path,
    template: str | None,
    other: Renderer | None = None,
    *,
    is_of_file: bool = False,
) -> Renderer:
    """Load a model's renderer of a `kind` (a name in RENDERERS) for engines of a rendering. `other` is that
    of another rendering: both share its tokenizer. `is_of_file`: see `PromptEncoder.load`. Raises
    PromptError."""
    tokenizer = other.tokenizer if isinstance(other, PromptEncoder) else None
    if rendering.engine == "mlx" and kind == "jinja":
        return MlxEncoder.load_for_mlx(directory, template, tokenizer, is_of_file=is_of_file)
    if rendering.engine != "sglang" and kind == "jinja":
        return PromptEncoder.load(directory, template, is_of_file=is_of_file)
    if rendering.engine != "sglang":
        return RENDERERS[kind](directory, template)
    if kind == "mistral":
        raise NotRendered("SGLang renders Mistral's own format by code that is not repeated here")
    return SglangEncoder.load_as(  # gpt-oss too
        rendering, directory, template, tokenizer, is_of_file=is_of_file
    )


def renderer_of(directory: Path) -> str:
    """Name of the renderer for a model's files."""
    usual = "mistral" if mistral.is_native(directory) else "jinja"
    try:
        family = json.loads((directory / "config.json").read_bytes()).get("model_type")
    except (OSError, AttributeError, *UNREADABLE):
        return usual
    return FAMILIES.get(family, usual)
