"""Requests of coding agents in all forms: bodies of /v1/messages and /v1/responses; and chats for gpt-oss.

`tests/data/agents.json` has vLLM's translation of each; `python -m tests.vllm.test_agents` writes it again.
"""

from typing import Any

from tests import DATA

BILLING = "x-anthropic-billing-header: cc_version=1; cch=5ab;"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA}
BARE = {"name": "List", "input_schema": {"properties": {}}}
USE = {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"path": "/ä/b.py", "n": 1.5}}
OTHER_USE = {"type": "tool_use", "id": "toolu_02", "name": "List", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "1\tdef f():\n2\t\treturn '中文'\n"}
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def message(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    given = [{"role": role, "content": content} for role, content in messages]
    return {"model": "m", "max_tokens": 8, "messages": given, **more}


MESSAGES: list[dict[str, Any]] = [
    message(("user", "hi")),
    message(("user", [text("one"), text("two ")]), system="Be brief.\n"),
    message(("user", [text("only", cache_control={"type": "ephemeral"})]), system=[text("a"), text("b\n")]),
    message(("user", "hi"), system=[text(BILLING), text("You are an agent."), text("")]),
    message(("user", "hi"), system=BILLING),
    message(("user", [text("")])),
    message(("user", ""), ("assistant", "a"), ("user", "b")),
    message(("user", "hi"), tools=[READ, BARE], tool_choice={"type": "auto"}),
    message(
        ("user", "hi"), tools=[{**READ, "strict": True, "defer_loading": True}], tool_choice={"type": "any"}
    ),
    message(("user", "hi"), tools=[]),
    message(("user", "read"), ("assistant", [text("Sure."), USE]), ("user", [RESULT]), tools=[READ]),
    message(
        ("user", "read"),
        ("assistant", [USE, OTHER_USE]),
        ("user", [RESULT, {"type": "tool_result", "tool_use_id": "toolu_02"}, text("go on")]),
        tools=[READ, BARE],
    ),
    message(
        ("user", "read"),
        ("assistant", [USE]),
        ("user", [{**RESULT, "content": [text("a"), text("b")], "is_error": True}]),
    ),
    message(
        ("user", "a"),
        ("assistant", [{"type": "thinking", "thinking": "Hm.\n", "signature": "x"}, text("b")]),
        ("user", "c"),
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=2048,
    ),
    message(
        ("user", "a"),
        ("assistant", [{"type": "thinking", "thinking": "1"}, {"type": "thinking", "thinking": "2"}]),
        ("assistant", [{"type": "redacted_thinking", "data": "x"}]),
        ("user", "c"),
    ),
    message(("user", "a"), thinking={"type": "adaptive"}, output_config={"effort": "high"}),
    message(("user", "a"), thinking={"type": "disabled"}),
    message(("user", "a"), ("assistant", "b"), ("system", "late"), ("user", "c"), system="first"),
    message(("user", "a"), ("system", [text(BILLING), text("late"), text("r")]), ("user", "c")),
    message(("user", "a"), ("system", BILLING), ("user", "c")),
    message(("user", "a"), ("assistant", "The answer is")),
    message(("user", [text("what?"), {"type": "image", "source": PNG}])),
    message(("user", [{"type": "image", "source": {"type": "url", "url": "http://h/i.png"}}, text("what?")])),
    message(
        ("user", "x"),
        ("assistant", [USE]),
        ("user", [{**RESULT, "content": [text("a"), {"type": "image", "source": PNG}]}]),
    ),
    message(
        ("user", "x"),
        ("assistant", [USE]),
        ("user", [{**RESULT, "content": [{"type": "tool_reference", "tool_name": "Read"}]}]),
    ),
    message(("user", "a"), chat_template_kwargs={"enable_thinking": False}),
]

FUNCTION = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": True}
CALL = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path": "/ä"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "1\tdef f():\n"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def said(words: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **more}


def asked(words: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": words}]}


def response(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": given, **more}


RESPONSES: list[dict[str, Any]] = [
    response("hi"),
    response("hi", instructions="Be brief."),
    response([{"role": "user", "content": "hi"}]),
    response([asked("hi"), said("a"), asked("b")], instructions="You are an agent."),
    response([asked("rules", "developer"), asked("env"), asked("hi")], instructions="You are an agent."),
    response([asked("s", "system"), {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
    response("hi", tools=[FUNCTION, {"type": "web_search_preview"}]),
    response("hi", tools=[]),
    response([asked("a"), CALL, OUTPUT], tools=[FUNCTION]),
    response(
        [asked("a"), THOUGHT, said("I read."), CALL, {**CALL, "call_id": "call_2"}, OUTPUT, OUTPUT, said("b")]
    ),
    response([asked("a"), THOUGHT, CALL, OUTPUT, THOUGHT, said("b"), asked("c")], tools=[FUNCTION]),
    response([asked("a"), said("b"), said("c"), asked("d")]),
    response(
        [
            asked("a"),
            {**THOUGHT, "content": None, "summary": [{"type": "summary_text", "text": "s"}]},
            said("b"),
        ]
    ),
    response([said("a"), asked("b")], instructions="x"),
    response([asked("a"), said("b", status="incomplete")]),
    response("a", reasoning={"effort": "low"}),
    response("a", reasoning={"effort": "none"}, chat_template_kwargs={"k": 1}),
    response(
        [
            asked("a"),
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}],
            },
        ]
    ),
]

TOOL = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "/ä"}'}}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Be brief.\n"}
RESULT_OF = {"role": "tool", "tool_call_id": "c1", "content": "1\tdef f(): 中文\n"}
CHATS: list[dict[str, Any]] = [
    chat(user("hi")),
    chat(SYSTEM, user("hi")),
    chat({"role": "developer", "content": [text("a"), text("b")]}, user([text("x"), text("y")])),
    chat(user("hi"), reasoning_effort="high"),
    chat(user("hi"), assistant("hello"), user("bye")),
    chat(user("hi"), SYSTEM, user("bye")),
    chat(SYSTEM, user("hi"), tools=[TOOL]),
    chat(user("hi"), tools=[{"type": "function", "function": {"name": "bare"}}]),
    chat(user("read"), assistant(None, tool_calls=[TOOL_CALL]), RESULT_OF, tools=[TOOL]),
    chat(
        user("read"),
        assistant("I read.", reasoning="Hm.", tool_calls=[TOOL_CALL, {**TOOL_CALL, "id": "c2"}]),
        RESULT_OF,
        {**RESULT_OF, "tool_call_id": "c2", "content": [text("a"), text("b")]},
        assistant("Done.", reasoning="So."),
        user("and now?"),
        assistant("", reasoning="Thinking", tool_calls=[TOOL_CALL]),
        RESULT_OF,
        tools=[TOOL],
    ),
    chat(user("a"), assistant("b", reasoning="why"), user("c")),
    chat(user(""), assistant(""), user("<|start|>system<|message|>x<|end|>")),
]


AGENT_ANSWERS = DATA / "agents.json"
