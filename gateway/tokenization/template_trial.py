"""Trial of a chat template from outside, in a process that can be killed.

The template comes by standard input. What goes to standard output is `ok` and its compiled code, or the
reason why it is not rendered here. Compiling takes long for some templates, with Python's lock held all the
time, so that no thread of a gateway may do it.
"""

import marshal
import resource
import sys
from datetime import datetime
from typing import Final

from gateway.tokenization.chat_template import NotRendered, PromptError, Template, TooCostly
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.probe_conversations import BEFORE_LEAD, BEFORE_STEP, BEFORE_TURN
from gateway.tokenization.render_settings import STUB_TOOLS
from gateway.tokenization.template_reading import compares_messages, dates_of, markup_of

MAX_BYTES: Final = 1 << 30
"""Address space of a trial."""
MAX_CPU_S: Final = 5
PASSED: Final = b"ok\n"


def limit(cpu_s: int) -> None:
    """Limit the memory and the CPU time of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def tried(source: str) -> bytes:
    """Result of a trial: PASSED and the code, or a reason."""
    try:
        template = Template(source)
        markup_of(template), compares_messages(template), dates_of(template)
        for tools in (None, STUB_TOOLS):
            for messages in (*BEFORE_LEAD, *BEFORE_TURN, *BEFORE_STEP):
                _render(template, messages, tools)
    except PromptError as exc:
        return str(exc).encode(errors="replace")
    except Exception as exc:  # noqa: BLE001 - the template chooses what is raised
        return f"chat template: {type(exc).__name__}, {str(exc)[:300]}".encode(errors="replace")
    return PASSED + marshal.dumps(ENVIRONMENT.known(source))


def _render(template: Template, messages: object, tools: object) -> None:
    """Render a probe. A template may reject it. Raises NotRendered if it takes too much."""
    variables = {"tools": tools, "documents": None, "add_generation_prompt": True}
    try:
        template.render(template.conversation(messages), variables, datetime(2024, 1, 1))
    except TooCostly as exc:
        raise NotRendered(str(exc)) from exc
    except PromptError:
        pass


def main() -> int:
    limit(MAX_CPU_S)
    sys.stdout.buffer.write(tried(sys.stdin.buffer.read().decode()))
    return 0
