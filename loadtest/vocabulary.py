"""Tokenizer of 32,768 entries, as models have: trained on the standard library, kept in `.cache/`.

The one that comes with the simulated engine has a quarter of that, and memory at the start is mainly the
vocabulary's. The same on every run with the same Python and tokenizers.
"""

import os
import platform
import shutil
import sysconfig
from importlib.metadata import version
from pathlib import Path

from gateway.app import bundled_tokenizer

SIZE = 32_768
CACHE = Path(__file__).parents[1] / ".cache"
MAX_CHARS = 8_000_000
"""Characters of training text: enough for so many entries; training takes seconds."""


def tokenizer_32k(size: int = SIZE, max_chars: int = MAX_CHARS, cache: Path = CACHE) -> Path:
    """Directory of the tokenizer, made when it is missing; the template is that of the bundled one."""
    name = f"tokenizer-{size}-{platform.python_version()}-{version('tokenizers')}"
    directory = cache / name
    if not (directory / "tokenizer.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundled_tokenizer() / "tokenizer_config.json", directory)
        unfinished = directory / f"unfinished-{os.getpid()}.json"  # others may make it at the same time
        unfinished.write_text(_train(size, max_chars), encoding="utf-8")
        unfinished.replace(directory / "tokenizer.json")
    return directory


def _train(size: int, max_chars: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(max_chars), trainer)
    text: str = tokenizer.to_str()
    return text


def _texts(max_chars: int) -> list[str]:
    """Files of the library in the order of their names, without what is installed."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
            max_chars -= len(texts[-1])
            if max_chars <= 0:
                break
    return texts
