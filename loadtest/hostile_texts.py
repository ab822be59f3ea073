"""Giant bodies, and the worst text of each family of tokenizers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.app import bundled_tokenizer

CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
)
Make = Callable[[int], bytes]


def _chat(content: str, before: str = "", behind: str = "") -> bytes:
    message = '{"role":"user","content":' + content + "}"
    return ('{"model":"sim","max_tokens":1,"messages":[' + before + message + behind + "]}").encode()


def _repeated(before: str, unit: str, behind: str) -> Make:
    """JSON of any size, made of `unit` with commas between."""

    def make(size: int) -> bytes:
        num = max(1, (size - len(before) - len(behind)) // (len(unit) + 1))
        return (before + ",".join([unit] * num) + behind).encode()

    return make


def _long(before: str, unit: str, behind: str) -> Make:
    """JSON of any size that holds one text."""

    def make(size: int) -> bytes:
        return (before + unit * max(1, size // len(unit.encode())) + behind).encode()

    return make


_TURN = '{"role":"user","content":"Hi"}'
_IMAGE = '[{"type":"text","text":"Look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,'
_TOOL = '{"type":"function","function":{"name":"f","parameters":{"a":[{},{},{}]}}}'
FORMS: Mapping[str, tuple[str, Make]] = {
    "chat": (CHAT, _long(_chat('"').decode()[:-3], "a", '"}]}')),
    "chat_prose": (CHAT, _long(_chat('"').decode()[:-3], "the quick brown fox ", '"}]}')),
    "chat_escapes": (CHAT, _long(_chat('"').decode()[:-3], "\\u0061", '"}]}')),
    "chat_wide": (CHAT, _long(_chat('"😀').decode()[:-3], "a", '"}]}')),
    "chat_emoji": (CHAT, _long(_chat('"').decode()[:-3], "😀", '"}]}')),
    "chat_emoji_escapes": (CHAT, _long(_chat('"').decode()[:-3], "\\ud83d\\ude00", '"}]}')),
    "chat_quotes": (CHAT, _long(_chat('"').decode()[:-3], '\\"', '"}]}')),
    "chat_parts": (CHAT, _repeated(_chat("[").decode()[:-3], '{"type":"text","text":"a"}', "]}]}")),
    "chat_among": (CHAT, _long(_chat('"', before=(_TURN + ",") * 1000).decode()[:-3], "a", '"}]}')),
    "chat_image": (CHAT, _long(_chat(_IMAGE).decode()[:-3], "iVBORw0KGgo=", '"}}]}]}')),
    "chat_messages": (CHAT, _repeated('{"model":"sim","messages":[', _TURN, "]}")),
    "chat_empty": (CHAT, _repeated('{"model":"sim","messages":[', '{"role":"u"}', "]}")),
    "chat_tools": (CHAT, _repeated('{"model":"sim","messages":[' + _TURN + '],"tools":[', _TOOL, "]}")),
    "chat_documents": (
        CHAT,
        _repeated('{"model":"sim","messages":[' + _TURN + '],"documents":[', "{}", "]}"),
    ),
    "completion": (COMPLETIONS, _long('{"model":"sim","prompt":"', "a", '"}')),
    "completion_spaces": (COMPLETIONS, _long('{"model":"sim","prompt":"', " ", '"}')),
    "completion_emoji": (COMPLETIONS, _long('{"model":"sim","prompt":"', "😀", '"}')),
    "completion_list": (COMPLETIONS, _repeated('{"model":"sim","prompt":[', '"a"', "]}")),
    "completion_ids": (COMPLETIONS, _repeated('{"model":"sim","prompt":[', "1", "]}")),
    "completion_id_lists": (COMPLETIONS, _repeated('{"model":"sim","prompt":[', "[1]", "]}")),
    "messages": (
        MESSAGES,
        _long('{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"', "a", '"}]}'),
    ),
    "messages_many": (MESSAGES, _repeated('{"model":"sim","max_tokens":1,"messages":[', _TURN, "]}")),
    "responses": (RESPONSES, _long('{"model":"sim","input":"', "a", '"}')),
    "responses_items": (RESPONSES, _repeated('{"model":"sim","input":[', _TURN, "]}")),
    "embeddings": (EMBEDDINGS, _repeated('{"model":"sim","input":[', '"a"', "]}")),
    "texts": (COMPLETIONS, _repeated('{"model":"sim","prompt":[', '"' + "a" * 9_000 + '"', "]}")),
    "names": (CHAT, _repeated('{"model":"sim","messages":[' + _TURN + "],", '"a":{}', "}")),
}
"""Routes and bodies by their contents."""

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REGEXES: Mapping[str, str] = {"gpt2": _GPT2, "llama3": _LLAMA3, "qwen": _QWEN, "tekken": _TEKKEN}
"""Patterns by which families split text into words, before their byte pairs are merged."""
WORST: Mapping[str, str] = {
    "gpt2": "a",
    "llama3": "a",
    "qwen": "a",
    "tekken": "A\u0301",
    "sentencepiece": "a b",
    "unigram": "a",
}
"""Texts that cost each family most, per byte."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CORPUS = ("the quick brown fox jumps over the lazy dog, 42 times a day. It's 3 o'clock!\n" * 20,)


def tokenizer_of(family: str, folder: Path) -> Path:
    """Tokenizer of this family, a small one in `folder`, with the template of the bundled one."""
    bundled = bundled_tokenizer() / "tokenizer_config.json"
    (folder / "tokenizer_config.json").write_bytes(bundled.read_bytes())
    (folder / "tokenizer.json").write_text(_trained(family), encoding="utf-8")
    return folder


def _trained(family: str) -> str:
    from tokenizers import AddedToken

    if family == "unigram":
        tokenizer, trainer = _unigram()
    elif family == "sentencepiece":
        tokenizer, trainer = _sentencepiece()
    else:
        tokenizer, trainer = _byte_level(REGEXES[family])
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in SPECIAL])
    text: str = tokenizer.to_str()
    return text


def _unigram() -> tuple[Any, Any]:
    """Tokenizer and its trainer, as of the next two."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )


def _sentencepiece() -> tuple[Any, Any]:
    from tokenizers import Tokenizer, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    return tokenizer, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *SPECIAL, *pieces], show_progress=False
    )


def _byte_level(pattern: str) -> tuple[Any, Any]:
    """Tokenizer of bytes, which splits texts by a regular expression first."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
