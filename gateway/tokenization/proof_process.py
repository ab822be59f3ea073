"""Process that proves the cut points of a model's settings (`proof_task.py`), and that can be killed.

The task comes by standard input, and the answer goes to standard output.
"""

import sys
from typing import Final

from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import Template
from gateway.tokenization.mlx import MlxTemplate
from gateway.tokenization.proof_task import proved
from gateway.tokenization.sglang import SglangTemplate
from gateway.tokenization.template_trial import limit

MAX_CPU_S: Final = 20
"""CPU time of the process: 3 s are usual at most, and a slow machine takes several times as long."""


def compiled(rendering: Rendering, source: str) -> Template:
    """Template of a source as engines of a rendering fill it in. Raises PromptError."""
    if rendering.engine == "mlx":
        return MlxTemplate(source)
    return SglangTemplate(rendering, source) if rendering.engine == "sglang" else Template(source)


def main() -> int:
    limit(MAX_CPU_S)
    sys.stdout.buffer.write(proved(sys.stdin.buffer.read(), compiled))
    return 0
