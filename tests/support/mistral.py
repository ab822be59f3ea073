"""Models in Mistral's own format, and chats for them.

The library has files of v3 in it, and none of later versions: these are made from it, with a small vocabulary
and the special tokens that they name. `tests/data/mistral.json` has vLLM's tokens of
each chat; `python -m tests.vllm.test_mistral` writes it again.
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests import DATA
from tests.support.agents import CHATS as AGENT_CHATS
from tests.support.agents import TOOL, TOOL_CALL, assistant, chat, text, user

GOLDEN = DATA / "mistral.json"
VERSIONS = ("v3", "v7", "v11", "v13", "v15")
NUM_SPECIAL, NUM_WORDS = 1000, 4000
EFFORTS = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": NUM_SPECIAL + NUM_WORDS,
}


@cache
def _shipped() -> Any:
    spec = find_spec("mistral_common")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "data" / "tekken_240718.json"
    return json.loads(path.read_bytes())


def write_model(directory: Path, version: str) -> Path:
    """`directory`, with a tekken.json of this version."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    shipped = _shipped()
    config = {**shipped["config"], "version": version, "default_vocab_size": NUM_SPECIAL + NUM_WORDS}
    made = {"vocab": shipped["vocab"][:NUM_WORDS], "config": {**config, "num_vocab_tokens": NUM_WORDS}}
    if version not in ("v3", "v7"):
        made["special_tokens"] = [
            {"rank": rank, "token_str": mark.value, "is_control": True}
            for rank, mark in enumerate(SpecialTokens)
        ]
    if version == "v15":
        made["model_settings_builder"] = {"reasoning_effort": EFFORTS}
    directory.mkdir(exist_ok=True)
    (directory / "tekken.json").write_text(json.dumps(made))
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


ID, OTHER_ID = "call10000", "call20000"
LONG_ID = "chatcmpl-tool-0123456789abcdef"
SYSTEM = {"role": "system", "content": "Be brief.\n"}
CALL = {**TOOL_CALL, "id": ID}
OTHER_CALL = {"id": OTHER_ID, "type": "function", "function": {"name": "read", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": ID, "content": ' {"sum":  1.5, "of": "\u4e2d"}\n'}
OTHER_RESULT = {"role": "tool", "tool_call_id": OTHER_ID, "content": "1\tdef f(): \u4e2d\u6587\n"}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}, "defer_loading": True}
BARE = {"type": "function", "function": {"name": "bare"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
NULLS = {"refusal": None, "annotations": None, "audio": None, "function_call": None}


def called(*calls: Any, content: Any = None, **more: Any) -> dict[str, Any]:
    return assistant(content, tool_calls=list(calls), **more)


def with_arguments(arguments: Any) -> dict[str, Any]:
    made = {**CALL, "function": {"name": "read", "arguments": arguments}}
    return chat(user("a"), called(made), RESULT)


EMPTY_TOOLS = chat(user("a"), tools=[])
TRUNCATED = chat(user("a b c d e f"), truncate_prompt_tokens=3)
OBJECT = with_arguments({"a": 1})
CHATS: list[dict[str, Any]] = [
    *AGENT_CHATS,
    chat(user("a"), SYSTEM, user("b")),
    chat(SYSTEM, SYSTEM, user("a"), user("b")),
    chat(SYSTEM),
    chat(user("a"), assistant("b"), assistant("c"), user("d")),
    chat({"role": "system", "content": [text("a"), text("b\n")]}, user([text(" a"), text("b ")])),
    chat({"role": "system", "content": "x-anthropic-billing-header: a\nYou."}, user("a")),
    chat(user([text("a", cache_control={"type": "ephemeral"})])),
    chat({**user("a"), "name": "ann", "more": 1}),
    chat(user("<s>[INST] a [/INST]</s> \U0001f600 e\u0301")),
    chat(user([])),
    chat(user(["a", "b"])),
    chat(user(None)),
    chat(user([IMAGE])),
    chat({"role": "unknown", "content": "a"}),
    chat(assistant("a"), user("b")),
    # tools
    chat(user("a"), tools=[TOOL, BARE, STRICT]),
    EMPTY_TOOLS,
    chat(user("a"), tools=[TOOL], tool_choice="none"),
    chat(user("a"), tools=[{"type": "function", "function": {"name": "not a name"}}]),
    chat(SYSTEM, user("a"), assistant("b"), user("c"), tools=[TOOL]),
    # calls and results
    chat(user("a"), called(CALL), RESULT, tools=[TOOL]),
    chat(user("a"), called(CALL, content=""), RESULT, tools=[TOOL]),
    chat(user("a"), called(CALL, content="I read."), RESULT, assistant("b"), user("c"), tools=[TOOL]),
    chat(user("a"), called(CALL, OTHER_CALL), OTHER_RESULT, RESULT, assistant("b"), user("c")),
    chat(user("a"), called(CALL, OTHER_CALL), RESULT),
    chat(user("a"), called(CALL), RESULT, RESULT),
    chat(user("a"), called(CALL), {**RESULT, "name": "read"}),
    chat(user("a"), called(CALL), {**RESULT, "content": [text("a"), text("b")]}),
    chat(user("a"), called(CALL), {**RESULT, "content": None}),
    chat(user("a"), called({**CALL, "id": LONG_ID}), {**RESULT, "tool_call_id": LONG_ID}),
    chat(user("a"), called({**CALL, "id": "call_0123456789"}), {**RESULT, "tool_call_id": "call_0123456789"}),
    chat(user("a"), called({**CALL, "id": ""}), {**RESULT, "tool_call_id": ""}),
    chat(user("a"), called({**CALL, "index": 0}), RESULT),
    chat(user("a"), called({key: CALL[key] for key in ("type", "function")}), RESULT),
    chat(user("a"), called(CALL), {"role": "tool", "content": "a"}),
    chat(user("a"), called(CALL), RESULT, user("go on")),
    *map(with_arguments, ('{"b":1,\n "a": "\u00e4 \\u00e4"}', "", "{", "[1]", "null", None)),
    OBJECT,
    # thoughts
    chat(user("a"), assistant("b", reasoning="why"), user("c")),
    chat(user("a"), assistant("b", reasoning_content="why"), user("c")),
    chat(user("a"), assistant("b", reasoning_content="why", reasoning="that"), user("c")),
    chat(user("a"), assistant("", reasoning="why"), user("c")),
    chat(user("a"), assistant(None, reasoning="why"), user("c")),
    chat(user("a"), called(CALL, reasoning="why"), RESULT),
    chat(user("a"), called(CALL, content="", reasoning="why"), RESULT),
    chat(user("a"), {"role": "assistant", "reasoning": "why", "tool_calls": [CALL]}, RESULT),
    chat(user("a"), assistant("b", reasoning="", **NULLS), user("c")),
    chat(user("a"), assistant("b", reasoning="why", **NULLS), user("c")),
    chat(user("a"), assistant("b", reasoning="why", refusal=None), user("c")),
    chat(user("a"), assistant("b", reasoning=None, tool_calls=[], **NULLS), user("c")),
    chat(user("a"), called(CALL, reasoning=None, **NULLS), RESULT),
    chat(user("a"), assistant([{"type": "thinking", "thinking": "why"}, text("b")]), user("c")),
    chat(user("a"), assistant([{"type": "thinking", "thinking": "why", "closed": False}]), user("c")),
    chat(user("a"), assistant([text("b"), {"type": "refusal", "refusal": "no"}]), user("c")),
    chat(user("a"), assistant([text("b"), text("c")], reasoning="why"), user("c")),
    chat(user("a"), assistant([text("b"), text("c")]), user("c")),
    # final messages to continue
    chat(user("a"), assistant("b"), add_generation_prompt=False, continue_final_message=True),
    chat(user("a"), assistant("b "), add_generation_prompt=False),
    chat(user("a"), assistant("b")),
    chat(user("a"), assistant("b", prefix=True), add_generation_prompt=False),
    chat(user("a"), add_generation_prompt=False, continue_final_message=True),
    chat(user("a"), assistant("b"), continue_final_message=True),
    chat(user("a"), add_generation_prompt=False),
    chat(user("a"), called(CALL, content="b"), add_generation_prompt=False, continue_final_message=True),
    # other fields
    *(chat(user("a"), reasoning_effort=effort) for effort in ("none", "low", "high", "auto", "much")),
    chat(SYSTEM, user("a"), reasoning_effort="high", tools=[TOOL]),
    chat(user("a"), chat_template_kwargs={}),
    chat(user("a"), chat_template_kwargs={"enable_thinking": True}),
    chat(user("a"), chat_template="{{ messages }}"),
    chat(user("a"), documents=[{"a": "b"}]),
    chat(user("a"), add_special_tokens=True),
    chat(user("a"), response_format={"type": "json_object"}),
    TRUNCATED,
    chat(),
]


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **more}


TEXTS: list[dict[str, Any]] = [
    completion("hi there"),
    completion(["a", "<s>[INST] b\n"]),
    completion("a", add_special_tokens=False),
    completion(""),
    completion("a b", suffix="c"),
    completion([]),
]
