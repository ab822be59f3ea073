"""Texts on which tokenizers disagree: scripts, white space, digits, emoji, control characters, long words."""

import random
from collections.abc import Callable

from gateway.tokenization.tokenizer import NEIGHBOURS, SAMPLES

SEED = 13
WORDS = (
    "the",
    "don't",
    "WON'T",
    "naïve",
    "Straße",
    "résumé",
    "e\u0301a\u030a",
    "ﬁne",
    "İstanbul",
    "x_1",
    "HTTPError",
)
SCRIPTS = (
    "漢字仮名",
    "かなカナ",
    "한국어",
    "ไทย",
    "हिन्दी",
    "עברית",
    "العربية",
    "Ελληνικά",
    "кириллица",
    "\u2581a",
)
BLANKS = (
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\ufeff",
    " \n ",
    "\n\n\n",
    "\x0b",
    "\x0c",
)
EMOJI = ("😀", "👍🏽", "👩‍👩‍👧", "🏳️‍🌈", "🇨🇭", "1️⃣", "©️", "𝔘", "\U0010fffd")
MARKS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<bos>",
    "<pad>",
    "[INST]",
    "<think>",
)


def odd_texts(number: int, seed: int = SEED) -> list[str]:
    """That many texts, the same for a seed."""
    rng = random.Random(seed)
    made = [*SAMPLES, *NEIGHBOURS][:number]
    while len(made) < number:
        made.append("".join(rng.choice(SORTS)(rng) for _ in range(rng.randrange(1, 12))))
    return made


def _digits(rng: random.Random) -> str:
    text = str(rng.randrange(10 ** rng.randrange(1, 25)))
    return text.translate(
        str.maketrans("0123456789", rng.choice(("0123456789", "٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９")))
    )


def _any(rng: random.Random) -> str:
    """Characters from all of Unicode but the surrogates."""
    found = (rng.randrange(0x110000 if rng.random() < 0.2 else 0x3000) for _ in range(rng.randrange(1, 9)))
    return "".join(chr(each) for each in found if not 0xD800 <= each < 0xE000)


def _long(rng: random.Random) -> str:
    """Repeat a word or a character many times."""
    return rng.choice((*WORDS, *SCRIPTS, "a", "=", "-", "é", ".", "'", "\\")) * rng.randrange(1, 80)


SORTS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rng.choice(WORDS),
    lambda rng: " " + rng.choice(WORDS),
    lambda rng: rng.choice(SCRIPTS),
    lambda rng: rng.choice(BLANKS) * rng.randrange(1, 20),
    lambda rng: rng.choice(EMOJI) * rng.randrange(1, 4),
    lambda rng: rng.choice(MARKS),
    lambda rng: chr(rng.randrange(0x20)) * rng.randrange(1, 4),
    lambda rng: "".join(rng.choice("!?.,;:#$%&*()[]{}<>/\\|'\"`~^_-+=") for _ in range(rng.randrange(1, 9))),
    _digits,
    _any,
    _long,
)
