"""Where the recorded traces lie that benchmarks play."""

import os
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.core.tokenizer import Tokenizer
from gateway.replay.traces import Encode

TRACES = Path(os.environ.get("TRACES", Path(__file__).parents[3] / "shared" / "data"))
CONVERSATION = TRACES / "mooncake_conversation_trace.jsonl.xz"
"""12,031 requests of an hour."""
AGENT = TRACES / "miniswe.jsonl.xz"
"""402 turns of coding agents with their texts."""


def bundled_encode() -> Encode:
    tokenizer = Tokenizer.load(bundled_tokenizer() / "tokenizer.json")
    return lambda text: tokenizer.encode(text, False)
