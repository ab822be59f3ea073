"""vLLM's own tokens of bodies with Mistral's tokenizer, without an engine: a program for vLLM's python.

`test_mistral.py` runs it. The program reads {"directories": {version: directory, …}, "chats": [body, …],
"messages": [body, …], "texts": [body, …]} and writes the tokens for each version, or null where vLLM rejects
the body.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any


def renderer_of(directory: str) -> Any:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer

    model = ModelConfig(model=directory, tokenizer_mode="mistral", config_format="hf", dtype="float32")
    renderer = renderer_from_config(VllmConfig(model_config=model))
    return OnlineRenderer(
        model, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto"
    )


async def tokens_of(rendering: Awaitable[Any]) -> list[list[int]] | None:
    try:
        answer = await rendering
    except Exception as exc:  # noqa: BLE001  vLLM answers any of them with an error
        print(type(exc).__name__, str(exc)[:300].replace("\n", " "), file=sys.stderr)
        return None
    return [list(each["prompt_token_ids"]) for each in answer] if isinstance(answer, list) else None


async def tokens_by_kind(directory: str, given: dict[str, Any]) -> dict[str, Any]:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    async def rendered(request: ChatCompletionRequest) -> Any:
        return (await renderer.render_chat(request))[1]

    async def chat(body: dict[str, Any]) -> Any:
        return await rendered(ChatCompletionRequest.model_validate(body))

    async def text(body: dict[str, Any]) -> Any:
        return await renderer.render_completion(CompletionRequest.model_validate(body))

    async def message(body: dict[str, Any]) -> Any:
        request = AnthropicServingMessages.to_chat_completion_request(
            AnthropicMessagesRequest.model_validate(body), merge_inline_system=True
        )
        return await rendered(request)

    renderer = renderer_of(directory)
    chats = [await tokens_of(chat(body)) for body in given["chats"]]
    messages = [await tokens_of(message(body)) for body in given["messages"]]
    return {
        "chats": [tokens and tokens[0] for tokens in chats],
        "messages": [tokens and tokens[0] for tokens in messages],
        "texts": [await tokens_of(text(body)) for body in given["texts"]],
    }


def main() -> None:
    import vllm

    given = json.load(sys.stdin)
    golden: dict[str, Any] = {"engine": f"vLLM {vllm.__version__}"}
    for version, directory in given["directories"].items():
        golden[version] = asyncio.run(tokens_by_kind(directory, json.loads(json.dumps(given))))
    print("\n" + json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
