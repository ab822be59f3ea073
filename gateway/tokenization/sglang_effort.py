"""Reasoning efforts in SGLang: what a template's own words make of a request's effort.

Read in SGLang 0.5.16 to 0.5.23 (srt/parser/{template_detection,hunyuan_reasoning}.py, serving_chat.py). The
engine recognizes families of models by the words of their template; the first that fits is the template's.
Most have no effect on a prompt:

    Nemotron 3 Super   the effort "low" sets `low_effort` (0.5.16)
    Hunyuan            behind the reasoning parser of that name, efforts become "no_think", "low" or "high",
                       and no effort is "high" (0.5.20)
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from jinja2 import nodes

from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import PromptError

LOWERS, DEFAULTS, NORMALIZES = (0, 5, 16), (0, 5, 17), (0, 5, 20)
"""First versions that set `low_effort`; that read defaults of `enable_thinking` in filters; that know
Hunyuan's efforts."""
LOW_EFFORT: Final = "low_effort"
HUNYUAN: Final[Mapping[object, str]] = {
    None: "high",
    **dict.fromkeys(("none", "no_think"), "no_think"),
    **dict.fromkeys(("minimal", "low"), "low"),
    **dict.fromkeys(("medium", "high", "xhigh", "max"), "high"),
}


class EffortUse(Enum):
    """Use that the engine makes of a request's effort, beside handing it to the template."""

    NONE = "none"
    SETS_LOW = "low_effort"
    HUNYUAN = "hunyuan"


_OPENS_THOUGHT: Final = re.compile(r"<\|im_start\|>assistant\\n<think>\\n")
_IF_UNDEFINED: Final = re.compile(r"{%\s*if\s+not\s+enable_thinking\s+is\s+defined\s*%}")
_SET_FALSE: Final = re.compile(r"{%\s*set\s+enable_thinking\s*=\s*(?:false|False)\s*%}")


def effort_use(source: str, tree: nodes.Template, rendering: Rendering) -> EffortUse:
    """Use of efforts before a template, by the first family that its words fit."""
    version = rendering.version
    if version < LOWERS:
        return EffortUse.NONE
    for since, use, fits in _FAMILIES:
        if version >= since and fits(source):
            is_used = use is not EffortUse.HUNYUAN or rendering.reasoning_parser == "hunyuan"
            return use if is_used else EffortUse.NONE
        if use is EffortUse.HUNYUAN and _is_off_by_default(source, tree, version):
            return EffortUse.NONE
    return EffortUse.NONE


def hunyuan_effort(effort: Any) -> str:
    """Effort that Hunyuan's template gets. Raises PromptError."""
    try:
        return HUNYUAN[effort]
    except (KeyError, TypeError):
        raise PromptError("reasoning_effort is not one of Hunyuan's") from None


def _has(*words: str) -> Callable[[str], bool]:
    return lambda source: all(word in source for word in words)


def _is_glm53(source: str) -> bool:
    words = ("[gMASK]<sop>", "Reasoning Effort:", "<tool_call>", "<arg_key>", "<arg_value>")
    return _has(*words)(source) and "enable_thinking" not in source


def _always_thinks(source: str) -> bool:
    return "thinking" not in source and _OPENS_THOUGHT.search(source) is not None


_FAMILIES: Final[tuple[tuple[tuple[int, ...], EffortUse, Callable[[str], bool]], ...]] = (
    (NORMALIZES, EffortUse.NONE, _has("<ifm|think>", "<ifm|think_fast>", "reasoning_effort")),
    (LOWERS, EffortUse.NONE, _has("<|channel|>")),
    (LOWERS, EffortUse.NONE, _always_thinks),
    (NORMALIZES, EffortUse.NONE, _is_glm53),
    (LOWERS, EffortUse.NONE, _has("reasoning_effort", "[THINK]")),
    (NORMALIZES, EffortUse.HUNYUAN, _has("reasoning_effort", "reasoning_mode_token", "no_think")),
    (LOWERS, EffortUse.SETS_LOW, _has(LOW_EFFORT, "truncate_history_thinking")),
)
"""Families in the engine's order: the first version that knows one, its use of efforts, and its words. Behind
Hunyuan's come templates in which thinking is off by default."""


def _is_off_by_default(source: str, tree: nodes.Template, version: tuple[int, ...]) -> bool:
    """True for a template in which `enable_thinking` is false unless it is given."""
    found = _IF_UNDEFINED.search(source)
    if found is not None and _SET_FALSE.search(source, found.end()):
        return True
    return version >= DEFAULTS and any(map(_defaults_to_false, tree.find_all(nodes.Filter)))


def _defaults_to_false(node: nodes.Filter) -> bool:
    """True for `enable_thinking | default(false)`."""
    if node.name not in ("default", "d") or node.dyn_args or node.dyn_kwargs:
        return False
    if not isinstance(node.node, nodes.Name) or node.node.name != "enable_thinking" or not node.args:
        return False
    named = [each.value for each in node.kwargs if each.key == "boolean"]
    boolean = next(iter([*node.args[1:2], *named]), None)
    if boolean is not None and not isinstance(boolean, nodes.Const):
        return False
    return isinstance(node.args[0], nodes.Const) and node.args[0].value is False
