"""Who makes a family's prompts: a registry that is a dict. What is in none of them is asked of the workers.

jinja      a chat template and tokenizer.json, as nearly all models have (`tokenization/prompt_encoder.py`)
harmony    gpt-oss
mistral    Mistral's own format, tekken.json
unavailable  what stands for one where there is none
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.core.decoding import UNREADABLE
from gateway.tokenization import harmony, mistral
from gateway.tokenization.base import Renderer
from gateway.tokenization.prompt_encoder import Prompts

Load = Callable[[Path, str | None], Renderer]
"""From a model's directory, and the text of a chat template in place of its own. Raises PromptError."""

RENDERERS: Mapping[str, Load] = {
    "jinja": Prompts.load,
    "harmony": harmony.load,
    "mistral": mistral.load,
}

FAMILIES = {"gpt_oss": "harmony"}
"""By `model_type` of config.json, as vLLM tells them apart."""


def renderer_of(directory: Path) -> str:
    """The name of the renderer that a model's files ask for."""
    usual = "mistral" if mistral.is_native(directory) else "jinja"
    try:
        family = json.loads((directory / "config.json").read_bytes()).get("model_type")
    except (OSError, AttributeError, *UNREADABLE):
        return usual
    return FAMILIES.get(family, usual)
