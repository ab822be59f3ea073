"""Processes for what chat templates take long for. Trials: of each template from outside, once, before a
gateway compiles it. Proofs: of the cut points of all templates, for each load.

template of a worker's model ─► refused before? ─► tried before? ─► process (`tokenization/template_trial.py`)
                                   └ NotRendered      └ fine            ├ its code: kept, and used
                                                                        └ a reason, or killed: NotRendered
"""

import hashlib
import logging
import marshal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.tokenization import proof_process, template_trial
from gateway.tokenization.chat_template import NotRendered, TooCostly
from gateway.tokenization.jinja_env import ENVIRONMENT

log = logging.getLogger("kvgate.models")

TRIAL_S = 30.0
"""Seconds that a trial may take: it takes 0.3 s, and ends after 5 s of its own time at the latest. The rest
is for a busy machine."""
PROGRAM = f"from {template_trial.__name__} import main; sys.exit(main())"
PROOFS_S = 60.0
"""Seconds that the proofs of a load may take: 1 to 4 s are usual, and the rest is for a busy machine."""
PROOFS_PROGRAM = f"from {proof_process.__name__} import main; sys.exit(main())"
KILLED = b"chat template: compiling it takes more time or memory than a template may"
MAX_REFUSED = 4096
"""Refused templates that are remembered."""

Run = Callable[[bytes], bytes]
"""Runs a trial of a template's text. Returns what `template_trial.tried` does; raises OSError or
TimeoutExpired."""


def run_trial(source: bytes) -> bytes:
    """Run a trial in a process. Blocking."""
    answer = _run(PROGRAM, source, TRIAL_S)
    return KILLED if answer is None else answer


def run_proofs(model: str, task: bytes) -> bytes:
    """Run a task of proofs (`tokenization/proof_task.py`) in a process. Blocking. Raises TooCostly if it was
    killed at its limits, and OSError if there was no answer, which is logged."""
    try:
        answer = _run(PROOFS_PROGRAM, task, PROOFS_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = f"no answer in {PROOFS_S:.0f} s" if isinstance(exc, subprocess.TimeoutExpired) else exc
        log.warning(
            "chat template of %s: the process that proves its cut points failed (%s); requests prove them "
            "one by one, and are rendered whole until then",
            model,
            why,
        )
        raise OSError(str(why)) from exc
    if answer is None:
        raise TooCostly("the proofs of its cut points take too much time or memory", True, False)
    return answer


def _run(program: str, given: bytes, timeout_s: float) -> bytes | None:
    """Output of a program in a process with the modules of this one; None if it was killed."""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]
    done = subprocess.run(command, input=given, capture_output=True, timeout=timeout_s)
    if done.returncode < 0:
        return None
    if done.returncode or not done.stdout:
        raise OSError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300])
    return done.stdout


class TemplateTrials:
    """Trials of templates, and what came of them."""

    def __init__(self, run: Run = run_trial) -> None:
        self._run = run
        self._refused: OrderedDict[bytes, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"TemplateTrials({len(self._refused)} refused)"

    def check(self, sources: Iterable[str], *, is_trusted: bool) -> None:
        """Try the templates that are not known yet, unless the operator is trusted for them; blocking, for
        0.3 s each. Raises NotRendered for one that is refused, now or before."""
        for source in sources:
            if why := self._refused.get(_digest(source)):
                raise NotRendered(why)
            if not is_trusted and ENVIRONMENT.known(source) is None:
                self._try(source)

    def refuse(self, source: str, why: str) -> None:
        """Refuse a template from now on."""
        self._refused[_digest(source)] = why
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def _try(self, source: str) -> None:
        try:
            answer = self._run(source.encode())
        except subprocess.TimeoutExpired:
            answer = f"chat template: compiling it took longer than {TRIAL_S:.0f} s".encode()
        except UnicodeEncodeError:
            answer = b"chat template: it is not a text"
        except OSError as exc:  # no process could be started: a later load may
            raise NotRendered(f"chat template: it could not be tried: {exc}") from exc
        if not answer.startswith(template_trial.PASSED):
            why = answer.decode(errors="replace")
            self.refuse(source, why)
            raise NotRendered(why)
        ENVIRONMENT.know(source, marshal.loads(answer[len(template_trial.PASSED) :]))


def _digest(source: str) -> bytes:
    return hashlib.sha256(source.encode(errors="surrogatepass")).digest()


TRIALS = TemplateTrials()
"""Trials of this process: loads after a reload of the configuration know what came of them."""
