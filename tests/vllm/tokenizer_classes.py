"""Tokens by transformers' own classes, and their names: a program for vLLM's python, which prints them.

Input: {"models": {name: directory}, "texts": […]}. `test_tokenizer_class.py` runs it.
"""

import json
import sys
from typing import Any


def main() -> None:
    from transformers import AutoTokenizer
    from transformers.models.auto import tokenization_auto as auto

    given = json.load(sys.stdin)
    made: dict[str, Any] = {}
    for name, directory in given["models"].items():
        tokenizer = AutoTokenizer.from_pretrained(directory)
        ids = [tokenizer(text).input_ids for text in given["texts"]]
        made[name] = {"class": type(tokenizer).__name__, "ids": ids}
    names = {
        "by_model_type": {key: value for key, value in auto.TOKENIZER_MAPPING_NAMES.items() if value},
        "wrong_on_hub": sorted(auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
        "ids_of_files": list(auto.MODEL_IDS_TO_TOKENIZERS_BACKEND),
    }
    print("\n" + json.dumps({"models": made, **names}))


if __name__ == "__main__":
    main()
