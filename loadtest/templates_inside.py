"""Prompts and tokens by an engine's own code: a program for the python of vLLM.

Input: {"templates": {name: directory of its model}, "chats": [body, …], "models": {name: directory},
"texts": [text, …]}. Output: lines of JSON, first {"reference": name}, then {"template": name, "ids": …} and
{"model": name, "ids": …}; null where the reference refuses a body. `loadtest/bench_templates.py` runs it.
"""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Body = dict[str, Any]
Render = Callable[[Any, str, Body], Any]
"""Tokens of a body by a tokenizer of transformers and a template's text."""


class UnsetModel:
    """Configuration of a model without media, as vLLM's rendering reads it: all else is unset."""

    hf_config = SimpleNamespace(model_type="llama")

    def __getattr__(self, name: str) -> None:
        return None


def by_vllm() -> tuple[str, Render]:
    """Name and rendering of vLLM: its request, its conversation, its call of the template. Raises
    ImportError."""
    import vllm
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import hf

    model = UnsetModel()

    def render(tokenizer: Any, template: str, body: Body) -> Any:
        request = ChatCompletionRequest.model_validate({"model": "m", **body})
        tools = [tool.model_dump() for tool in request.tools] if request.tools else None
        params = request.build_chat_params(template, "auto")
        params = params.with_defaults({"tools": tools, "tokenize": False})
        kind = hf.resolve_chat_template_content_format(
            chat_template=template, tools=tools, given_format="auto", tokenizer=tokenizer, model_config=model
        )
        conversation, *_ = hf.parse_chat_messages(request.messages, model, content_format=kind)
        given = params.get_apply_chat_template_kwargs()
        text = hf.safe_apply_chat_template(model, tokenizer, conversation, **given)
        return tokenizer(text, add_special_tokens=request.add_special_tokens).input_ids

    return f"vLLM {vllm.__version__}", render


def made(render: Render, tokenizer: Any, template: str, body: Body) -> Any:
    try:
        return render(tokenizer, template, json.loads(json.dumps(body)))
    except Exception as exc:  # noqa: BLE001 - the reference's own kinds, for a body that it refuses
        print(f"{type(exc).__name__}: {str(exc)[:200]}", file=sys.stderr)
        return None


def main() -> None:
    given = json.load(sys.stdin)
    name, render = by_vllm()
    from transformers import AutoTokenizer

    print("\n" + json.dumps({"reference": name}))
    for template, directory in given["templates"].items():
        tokenizer = AutoTokenizer.from_pretrained(directory)
        ids = [made(render, tokenizer, tokenizer.chat_template, body) for body in given["chats"]]
        print("\n" + json.dumps({"template": template, "ids": ids}))
    for model, directory in given["models"].items():
        loaded = AutoTokenizer.from_pretrained(directory)
        ids = [loaded(text).input_ids for text in given["texts"]]
        print("\n" + json.dumps({"model": model, "ids": ids}))


if __name__ == "__main__":
    main()
