"""MLX's own prompts of many bodies, without a server: a program for MLX's python.

`test_prompts.py` runs it. Input: {"tokenizer": directory, "templates": {name: source}, "chats": [body, …],
"completions": …}. Output: the token ids of each, null where the engine rejects the body. The reading of a
body, the preparation of messages and the rendering are the engine's; its socket and model are not there.
"""

import copy
import json
import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from mlx_lm import server
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import AutoTokenizer


class Engine:
    """The server's classes before one chat template."""

    def __init__(self, directory: str, template: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        tokenizer.chat_template = template
        self.tokenizer = TokenizerWrapper(tokenizer)
        self.generator = object.__new__(server.ResponseGenerator)
        settings = SimpleNamespace(chat_template_args={})
        self.generator.model_provider = SimpleNamespace(processor=None, cli_args=settings)

    def tokens(self, body: dict[str, Any], factory: str) -> list[int] | None:
        handler = object.__new__(server.APIHandler)
        handler.body, handler.stream = copy.deepcopy(body), False
        try:
            request = getattr(handler, factory)()
            args = SimpleNamespace(chat_template_kwargs=handler.body.get("chat_template_kwargs"))
            return list(self.generator._tokenize(self.tokenizer, request, args)[0])
        except Exception as exc:  # noqa: BLE001  the server answers any of them with an error
            print(f"{type(exc).__name__}: {exc}"[:200], file=sys.stderr)
            return None


def main() -> None:
    given, now = json.load(sys.stdin), datetime.now()
    engines = {name: Engine(given["tokenizer"], source) for name, source in given["templates"].items()}
    chats = {
        name: [engine.tokens(body, "handle_chat_completions") for body in given["chats"]]
        for name, engine in engines.items()
    }
    first = next(iter(engines.values()))
    texts = [body if isinstance(body.get("prompt"), str) else {} for body in given["completions"]]
    completions = [first.tokens(body, "handle_text_completions") for body in texts]
    made = {"engine": f"MLX {server.__version__}", "asked_at": now.isoformat()}
    print("\n" + json.dumps({**made, "chats": chats, "completions": completions}))


main()
