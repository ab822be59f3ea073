"""SGLang's own prompts of many bodies, without a server: a program for SGLang's python.

`test_prompts.py` runs it, once for each version. Input: {"tokenizer": directory, "templates": {name:
source}, "chats": [body, …], "completions": …, "messages": …, "responses": …}. Output: the token ids of each,
null where the engine rejects the body. The parsing, validation and rendering are the engine's; its server,
scheduler and model are not there.
"""

import asyncio
import importlib
import json
import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any

ENTRY = "sglang.srt.entrypoints."
CONTEXT = ("get_serving", "get_model", "get_disagg", "get_observability", "get_server_args", "get_lora")
"""Accessors of the settings that a running server has published."""


class Unset:
    """Settings of a server without options: all off."""

    def __getattr__(self, name: str) -> None:
        if name == "disaggregation_mode":
            return "null"  # type: ignore[return-value]
        return None


class Engine:
    """The serving classes of one version before one chat template."""

    def __init__(self, directory: str, template: str) -> None:
        hub = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
        self.tokenizer = hub.get_tokenizer(directory)
        self.tokenizer.chat_template = template
        config = SimpleNamespace(model_type="llama", architectures=["LlamaForCausalLM"])
        model = SimpleNamespace(
            hf_config=config, is_multimodal=False, context_len=1 << 20, get_default_sampling_params=dict
        )
        manager = SimpleNamespace(
            tokenizer=self.tokenizer,
            processor=None,
            model_config=model,
            server_args=Unset(),
            model_path=directory,
            served_model_name="m",
            config_value=lambda name: None,
            enable_lora=False,
        )
        templates = _templates()
        templates.load_chat_template(manager, None, directory)
        self.chats = _module("openai.serving_chat").OpenAIServingChat(manager, templates)
        self.completions = _module("openai.serving_completions").OpenAIServingCompletion(manager, templates)
        self.messages = _module("anthropic.serving").AnthropicServing(self.chats)
        self.responses = _module("openai.serving_responses").OpenAIServingResponses(manager, templates)
        self.protocol = _module("openai.protocol")

    def chat(self, body: dict[str, Any]) -> list[int]:
        return self._of_chat(self.protocol.ChatCompletionRequest.model_validate(body))

    def _of_chat(self, request: Any) -> list[int]:
        if wrong := self.chats._validate_request(request):
            raise ValueError(wrong)
        made, _ = self.chats._convert_to_internal_request(request)
        return self._ids(made)

    def completion(self, body: dict[str, Any]) -> list[list[int]]:
        request = self.protocol.CompletionRequest.model_validate(body)
        if wrong := self.completions._validate_request(request):
            raise ValueError(wrong)
        made, _ = self.completions._convert_to_internal_request(request)
        if made.text is not None:
            texts = made.text if isinstance(made.text, list) else [made.text]
            return [self.tokenizer(text)["input_ids"] for text in texts]
        return made.input_ids if isinstance(made.input_ids[0], list) else [made.input_ids]

    def message(self, body: dict[str, Any]) -> list[int]:
        asked = _module("anthropic.protocol").AnthropicMessagesRequest.model_validate(body)
        return self._of_chat(self.messages._convert_to_chat_completion_request(asked))

    def response(self, body: dict[str, Any]) -> list[int]:
        asked = self.protocol.ResponsesRequest.model_validate(body)
        _, prompts, _, *_ = asyncio.run(self.responses._make_request(asked, None, self.tokenizer))
        ids: list[int] = prompts[0]
        return ids

    def _ids(self, made: Any) -> list[int]:
        ids: list[int] = made.input_ids
        return ids


def _module(name: str) -> Any:
    module = importlib.import_module(ENTRY + name)
    for accessor in CONTEXT:
        if hasattr(module, accessor):
            setattr(module, accessor, Unset)
    return module


def _templates() -> Any:
    try:
        module = importlib.import_module("sglang.srt.parser.template_manager")
    except ImportError:  # 0.5.10
        module = importlib.import_module("sglang.srt.managers.template_manager")
    for accessor in CONTEXT:
        if hasattr(module, accessor):
            setattr(module, accessor, Unset)
    return module.TemplateManager()


def _made(make: Any, body: dict[str, Any]) -> Any:
    try:
        return make(json.loads(json.dumps({"model": "m", **body})))
    except Exception as exc:  # noqa: BLE001 - the engine's own kinds, for a body that it rejects
        print(f"{type(exc).__name__}: {str(exc)[:300]}", file=sys.stderr)
        return None


def main() -> None:
    for name in ("openai.serving_base", "openai.serving_chat"):
        _module(name)
    import sglang

    given = json.load(sys.stdin)
    made: dict[str, Any] = {name: {} for name in ("chats", "messages", "responses")}
    for name, source in given["templates"].items():
        engine = Engine(given["tokenizer"], source)
        made["chats"][name] = [_made(engine.chat, body) for body in given["chats"]]
        made["messages"][name] = [_made(engine.message, body) for body in given["messages"]]
        made["responses"][name] = [_made(engine.response, body) for body in given["responses"]]
    made["completions"] = [_made(engine.completion, body) for body in given["completions"]]
    engine_name = {"engine": f"SGLang {sglang.__version__}", "asked_at": datetime.now().isoformat()}
    print("\n" + json.dumps({**engine_name, **made}))


if __name__ == "__main__":
    main()
