"""Templates and variables for the proof of cuts."""

from datetime import datetime
from typing import Any

from gateway.tokenization.chat_template import Template
from gateway.tokenization.render_settings import RenderSetting
from gateway.tokenization.template_reading import markup_of

CUTS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]")
NOW = datetime(2024, 7, 26, 12)
LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content or '') }}{% endfor %}"
PLAIN = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}


def settings_of(source: str, *variables: dict[str, Any], now: datetime = NOW) -> list[RenderSetting]:
    template = Template(source)
    return [RenderSetting(template, markup_of(template), {**PLAIN, **each}, now) for each in variables]
