"""Tokenizer classes of transformers 5: some make a tokenizer of their own from the vocabulary and merges of
tokenizer.json, and leave out the rest of it.

Read in transformers 5.19 (models/auto/tokenization_auto.py, tokenization_utils_tokenizers.py, the classes);
`tests/vllm/test_tokenizer_class.py` compares with it. The class follows from `tokenizer_class` and
`model_type` (`class_of`). Of those that are rebuilt here (`REBUILT`) all but vocabulary, merges, added tokens
and post-processor are the class's; of others the file is used as it is, and may be wrong.
"""

import fnmatch
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.tokenization.class_names import BY_MODEL_TYPE, HUB_IDS_OF_FILES, REBUILDERS, WRONG_ON_HUB

BACKENDS: Final = {"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer"}
"""Classes that use tokenizer.json as it is."""
MISTRAL: Final = "MistralCommonBackend"
USUAL_ADVICE: Final = "check that --tokenizer is this model's, with the chat template that the worker uses"
_QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPACE: Final = "\u2581"
Parts = dict[str, Any]
"""Fields of a tokenizer.json; of `model` those beside its vocabulary and merges."""


def class_of(directory: Path, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> str | None:
    """Class by which transformers 5 makes a model's tokenizer, of its `tokenizer_config.json` and
    `config.json`; None for one that uses tokenizer.json as it is, or code of the model's own."""
    own = _text(config, "tokenizer_class")
    hub = own or _text(model_config, "tokenizer_class")
    if "auto_map" in config or _is_of_files(directory):
        return None
    model_type = _text(model_config, "model_type")
    registered = BY_MODEL_TYPE.get(model_type)
    if hub and registered and registered.removesuffix("Fast") != hub.removesuffix("Fast"):
        if registered in BACKENDS or registered == MISTRAL:
            return None
        name = registered if model_type in WRONG_ON_HUB else hub
    else:
        name = hub or registered or ""
    name = name.removesuffix("Fast")
    return name if name in REBUILT or name in REBUILDERS else None


def advice_of(name: str | None, *, is_of_file: bool = False) -> str:
    """Likely reason of tokens other than a worker's, where the tokenizer is of a class, or was read of the
    file in its place."""
    if name in REBUILT and is_of_file:
        return (
            "kvgate loads tokenizer.json as it is, like transformers 4; transformers 5 builds a "
            f"{name} from it"
        )
    if name in REBUILT:
        return (
            f"kvgate builds a {name} from the vocabulary and merges of tokenizer.json, like transformers 5; "
            "check that the worker runs transformers 5"
        )
    if name:
        return (
            f"transformers 5 builds a tokenizer of its own for the class {name}, while kvgate loads "
            "tokenizer.json: most probably the difference"
        )
    return USUAL_ADVICE


def words_of(name: str | None, *, is_of_file: bool = False) -> str:
    """Words on the reading of tokenizer.json behind others; none for a model with a single one."""
    if name not in REBUILT:
        return ""
    if is_of_file:
        return f"; tokenizer.json as it is, not built as {name}"
    return f"; built as {name} from its vocabulary and merges"


def rebuilt(text: str, name: str, config: Mapping[str, Any]) -> str:
    """Text of a tokenizer.json as a class of REBUILT makes it. Raises one of UNREADABLE, or KeyError, for a
    file of another form."""
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    model = msgspec.json.decode(fields["model"], type=dict[str, msgspec.Raw])
    if json.loads(bytes(model.get("type", b'"BPE"'))) != "BPE":
        return text
    parts = REBUILT[name](config)
    made: Parts = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    made |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    made |= parts.pop("model", {})
    kept: Parts = {key: model[key] for key in ("vocab", "merges")}
    if config.get("added_tokens_decoder"):
        parts["added_tokens"] = []  # only those of the configuration are added
    return msgspec.json.encode({**fields, **parts, "model": {**made, **kept}}).decode()


def _gpt2(config: Mapping[str, Any]) -> Parts:
    return {
        "normalizer": None,
        "pre_tokenizer": _byte_level(add_prefix_space=bool(config.get("add_prefix_space"))),
        "decoder": _byte_level(),
        "model": {"continuing_subword_prefix": "", "end_of_word_suffix": ""},
    }


def _qwen2(config: Mapping[str, Any]) -> Parts:
    words = {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    last = _byte_level(add_prefix_space=bool(config.get("add_prefix_space")), use_regex=False)
    return {
        **_gpt2(config),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, last]},
    }


def _llama(config: Mapping[str, Any]) -> Parts:
    given = config.get("add_prefix_space")
    is_prefixed = given is None or bool(given)
    first = "always" if config.get("legacy") else "first"
    decoders: list[Parts] = [*_BYTES_AFTER_SPACE]
    if is_prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    space = {"type": "Metaspace", "replacement": _SPACE, "split": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {**space, "prepend_scheme": first if is_prefixed else "never"},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"fuse_unk": True, "byte_fallback": True},
    }


def _gemma(config: Mapping[str, Any]) -> Parts:
    space = {"type": "Split", "pattern": {"String": " "}, "invert": False}
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": {**space, "behavior": "MergedWithPrevious"},
        "decoder": {"type": "Sequence", "decoders": [*_BYTES_AFTER_SPACE]},
        "model": {"fuse_unk": True, "byte_fallback": True, "unk_token": _token(config, "unk_token", "<unk>")},
    }


_BYTES_AFTER_SPACE: Final[tuple[Parts, ...]] = (
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
REBUILT: Final[Mapping[str, Callable[[Mapping[str, Any]], Parts]]] = {
    "GPT2Tokenizer": _gpt2,
    "Qwen2Tokenizer": _qwen2,
    "LlamaTokenizer": _llama,
    "GemmaTokenizer": _gemma,
}


_END: Final = "<|endoftext|>"
_SPECIALS: Final[Mapping[str, Mapping[str, str]]] = {
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    | {"mask_token": "<mask>"},
}
"""Special tokens of a class, where the configuration names none."""


def with_specials(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Configuration with the special tokens that a class of REBUILT has by itself."""
    return {**_SPECIALS[name], **config}


def _byte_level(*, add_prefix_space: bool = True, use_regex: bool = True) -> Parts:
    space: Parts = {"type": "ByteLevel", "add_prefix_space": add_prefix_space}
    return {**space, "trim_offsets": True, "use_regex": use_regex}


def _token(config: Mapping[str, Any], name: str, default: str) -> str:
    value = config.get(name, default)
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else default


def _text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name)
    return value if isinstance(value, str) else ""


def _is_of_files(directory: Path) -> bool:
    """True for a directory of the hub's cache with a model that transformers knows by its name, so that it
    uses the file."""
    ids = [part.removeprefix("models--").replace("--", "/", 1).lower() for part in directory.parts]
    return any(fnmatch.fnmatchcase(each, pattern) for each in ids for pattern in HUB_IDS_OF_FILES)
