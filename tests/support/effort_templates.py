"""Templates that print the efforts that they get, bodies for them, and what SGLang 0.5.23 makes of both."""

from collections.abc import Mapping, Sequence
from typing import Any

_PRINTS = (
    "{{- [low_effort, reasoning_effort, thinking, enable_thinking] | map('string') | join(' ') }}|"
    "{%- for m in messages %}{{ m.content }}{% endfor %}"
)
TEMPLATES: Mapping[str, str] = {
    "nemotron": _PRINTS + "{#- truncate_history_thinking #}",
    "words missing": _PRINTS,
    "another family": _PRINTS + "{#- truncate_history_thinking <|channel|> #}",
}
BODIES: Sequence[Mapping[str, Any]] = (
    {},
    {"reasoning_effort": "low"},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "low"}},
    {"reasoning_effort": "low", "chat_template_kwargs": {"low_effort": False}},
    {"chat_template_kwargs": {"reasoning_effort": "low"}},
    {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
    {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": None}},
    {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
)

SHOWN: Mapping[str, Sequence[str]] = {
    "nemotron": (
        "   ",
        "True low True True",
        " high True True",
        " none False False",
        "True low True True",
        "False low True True",
        "True low  ",
        " high True True",
        "True low True True",
        "True low True False",
    ),
    "words missing": (
        "   ",
        " low True True",
        " high True True",
        " none False False",
        " low True True",
        "False low True True",
        " low  ",
        " high True True",
        " low True True",
        " low True False",
    ),
    "another family": (
        "   ",
        " low True True",
        " high True True",
        " none False False",
        " low True True",
        "False low True True",
        " low  ",
        " high True True",
        " low True True",
        " low True False",
    ),
}
