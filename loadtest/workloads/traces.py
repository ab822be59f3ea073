"""Paths of the recorded traces that benchmarks play."""

import os
import sys
import tempfile
from pathlib import Path

from gateway.app import bundled_tokenizer
from gateway.replay.formats.reading import Encode
from gateway.tokenization.tokenizer import Tokenizer
from loadtest.extent import IS_SMOKE
from loadtest.workloads import small_traces

TRACES = Path(os.environ.get("TRACES", Path(__file__).parents[3] / "shared" / "data"))
CONVERSATION = TRACES / "mooncake_conversation_trace.jsonl.xz"
"""12,031 requests of an hour."""
AGENT = TRACES / "miniswe.jsonl.xz"
"""402 turns of coding agents with their texts."""

if IS_SMOKE:
    _made = tempfile.TemporaryDirectory(prefix="kvgate-traces-")  # removed when this process ends
    CONVERSATION, AGENT = (Path(_made.name) / path.name for path in (CONVERSATION, AGENT))
    small_traces.write(CONVERSATION, small_traces.conversations(20))
    small_traces.write(AGENT, small_traces.sessions(4))


def check_traces(*paths: Path) -> None:
    """Exit with a remedy where one is missing."""
    for path in paths:
        if not path.is_file():
            sys.exit(f"{path} is missing: set TRACES to the directory of the recorded traces, or SMOKE=1")


def bundled_encode() -> Encode:
    tokenizer = Tokenizer.load(bundled_tokenizer() / "tokenizer.json")
    return lambda text: tokenizer.encode(text, False)
