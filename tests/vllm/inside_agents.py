"""vLLM's own conversion of agents' bodies to chats, without an engine: a program for vLLM's python.

`test_agents.py` runs it. The program reads {"messages": [body, …], "responses": [body, …],
"chats": [body, …]} and writes the chat of each.
"""

import json
import sys
from typing import Any


def messages(body: dict[str, Any], *, merges: bool) -> dict[str, Any]:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    chat = AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(body), merge_inline_system=merges
    )
    tools = None if chat.tools is None else [tool.model_dump() for tool in chat.tools]
    return _chat(chat.messages, tools, chat.reasoning_effort, chat.chat_template_kwargs, False)


def responses(body: dict[str, Any]) -> dict[str, Any]:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import (
        construct_input_messages,
        construct_tool_dicts,
        should_continue_final_message,
    )

    request = ResponsesRequest.model_validate(json.loads(json.dumps(body)))
    converted = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    effort = request.reasoning.effort if request.reasoning else None
    is_open = should_continue_final_message(request.input)
    return _chat(converted, tools, effort, request.chat_template_kwargs, is_open)


def harmony(body: dict[str, Any]) -> list[int]:
    """Tokens of a chat in Harmony's format, as `OnlineRenderer._make_request_with_harmony` renders it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.parser import harmony_utils as h

    request = ChatCompletionRequest.model_validate(body)
    instructions, rest = h.extract_instructions_from_messages(body["messages"])
    effort = request.reasoning_effort
    converted = h.build_harmony_preamble(
        instructions=instructions, tools=request.tools, reasoning_effort=effort, with_custom_tools=True
    )
    return h.render_for_completion([*converted, *h.parse_chat_inputs_to_harmony_messages(rest)])


def _chat(converted: Any, tools: Any, effort: Any, kwargs: Any, is_open: bool) -> dict[str, Any]:
    plain = json.loads(json.dumps(list(converted), default=_plain))
    return {
        "messages": plain,
        "tools": tools,
        "reasoning_effort": effort,
        "chat_template_kwargs": kwargs,
        "continue_final_message": is_open,
    }


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else list(value)


def main() -> None:
    import vllm

    given = json.load(sys.stdin)
    chats = {
        "engine": f"vLLM {vllm.__version__}",
        "messages": [messages(body, merges=False) for body in given["messages"]],
        "messages_merged": [messages(body, merges=True) for body in given["messages"]],
        "harmony": [harmony(body) for body in given["chats"]],
        "responses": [responses(body) for body in given["responses"]],
    }
    print("\n" + json.dumps(chats, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
