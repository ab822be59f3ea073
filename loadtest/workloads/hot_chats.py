"""Chats of which nine in ten begin with one system prompt; the others share nothing. Text is random words.
Requests come at random, about as often as the demo's (`gateway/demo/traffic.py`)."""

import random
from collections.abc import Iterator

from gateway.demo.traffic import MODEL, OUTPUT_TOKENS, DemoRequest

RATE = 4.5
SHARE = 0.9
SYSTEM_WORDS, OWN_WORDS, OTHER_WORDS = 1500, (20, 100), (100, 1000)


def hot_chats(seed: int) -> Iterator[DemoRequest]:
    """Requests in order of their times, without end."""
    rng = random.Random(seed)
    system, at_s = {"role": "system", "content": _text(rng, SYSTEM_WORDS)}, 0.0
    while True:
        at_s += rng.expovariate(RATE)
        is_hot = rng.random() < SHARE
        own = {"role": "user", "content": _text(rng, rng.randint(*(OWN_WORDS if is_hot else OTHER_WORDS)))}
        body = {
            "model": MODEL,
            "messages": [system, own] if is_hot else [own],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": OUTPUT_TOKENS,
        }
        yield DemoRequest(at_s, "hot" if is_hot else "chat", body)


def _text(rng: random.Random, num: int) -> str:
    return " ".join(f"{rng.randrange(16**4):04x}" for _ in range(num))
