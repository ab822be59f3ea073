"""A template from outside is tried once, in a process of its own, and what came of it is remembered."""

import logging
import subprocess
from typing import Any

import pytest

from gateway.core.rendering import VLLM
from gateway.models import template_trials
from gateway.models.template_trials import TemplateTrials, run_proofs, run_trial
from gateway.tokenization.chat_template import NotRendered, Template, TooCostly
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.proof_process import compiled
from gateway.tokenization.proof_task import proved, task_of
from gateway.tokenization.template_trial import PASSED, tried
from tests.support.proof_settings import CUTS, LOOP, settings_of


class Runs:
    """Trials in this process, which are counted."""

    def __init__(self, result: Any = None) -> None:
        self.result, self.sources = result, list[str]()

    def __call__(self, source: bytes) -> bytes:
        self.sources.append(source.decode())
        if isinstance(self.result, Exception):
            raise self.result
        return tried(source.decode()) if self.result is None else self.result


def source_of(request: pytest.FixtureRequest, text: str = "{{ messages[0].content }}") -> str:
    """Template that no other test compiles."""
    return text + "{# " + request.node.name + " #}"


def test_a_template_that_passed_is_compiled_and_not_tried_again(request: pytest.FixtureRequest) -> None:
    runs, source = Runs(), source_of(request)
    for trials in (TemplateTrials(runs), TemplateTrials(runs)):
        trials.check([source, source], is_trusted=False)
    assert runs.sources == [source] and ENVIRONMENT.known(source)
    assert Template(source).source == source


def test_a_refused_template_is_refused_again_without_a_trial(request: pytest.FixtureRequest) -> None:
    runs, source = Runs(), source_of(request, "{{ 'a' * 10**12 }}")
    trials = TemplateTrials(runs)
    for is_trusted in (False, False, True):
        with pytest.raises(NotRendered, match="more time or memory"):
            trials.check([source], is_trusted=is_trusted)
    assert runs.sources == [source]


def test_the_operators_templates_are_not_tried_unless_they_were_refused(
    request: pytest.FixtureRequest,
) -> None:
    runs, source = Runs(), source_of(request)
    trials = TemplateTrials(runs)
    trials.check([source], is_trusted=True)
    trials.refuse(source, "it took too long for a request")
    with pytest.raises(NotRendered, match="for a request"):
        trials.check([source], is_trusted=True)
    assert runs.sources == []


def test_a_process_that_cannot_be_started_refuses_for_this_load_only(request: pytest.FixtureRequest) -> None:
    runs, source = Runs(OSError("no memory")), source_of(request)
    trials = TemplateTrials(runs)
    with pytest.raises(NotRendered, match="no memory"):
        trials.check([source], is_trusted=False)
    runs.result = None
    trials.check([source], is_trusted=False)
    assert len(runs.sources) == 2


def test_a_trial_that_takes_too_long_refuses(request: pytest.FixtureRequest) -> None:
    trials = TemplateTrials(Runs(subprocess.TimeoutExpired("x", 30)))
    with pytest.raises(NotRendered, match="took longer than 30 s"):
        trials.check([source_of(request)], is_trusted=False)
    with pytest.raises(NotRendered, match="not a text"):
        trials.check(["\ud800"], is_trusted=False)


@pytest.mark.parametrize("code", ["t.MAX_CPU_S = 1; t.tried = endless", "import os; os.kill(os.getpid(), 9)"])
def test_a_process_that_takes_too_much_is_killed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is limited, though no template is known that reaches its limits."""
    start = "from gateway.tokenization import template_trial as t; endless = lambda text: any(iter(bool, 1))"
    monkeypatch.setattr(template_trials, "PROGRAM", f"{start}; {code}; t.main()")
    assert run_trial(b"") == template_trials.KILLED


def test_a_process_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    start = (
        "from gateway.tokenization import template_trial as t; t.Template = lambda source: ' ' * (4 << 30)"
    )
    monkeypatch.setattr(template_trials, "PROGRAM", f"{start}; t.main()")
    assert run_trial(b"") == b"chat template: MemoryError, "


def test_a_process_that_fails_has_its_error_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_trials, "PROGRAM", "import no_such_module")
    with pytest.raises(OSError, match="No module named 'no_such_module'"):
        run_trial(b"")


def test_a_process_tries_what_comes_by_its_standard_input() -> None:
    assert b"more time or memory" in run_trial("é{{ 'a' * 10**12 }}".encode())
    assert run_trial(b"{{ messages[0].content }}").startswith(PASSED)


# proofs ------------------------------------------------------------------------------------------


def test_proofs_come_from_a_process() -> None:
    task = task_of(VLLM, CUTS, settings_of(LOOP, {}))
    assert run_proofs("m", task) == proved(task, compiled)


def test_proofs_that_take_too_much_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    start = "from gateway.tokenization import proof_process as p; p.MAX_CPU_S = 1"
    endless = "p.proved = lambda task, compiled: any(iter(bool, 1))"
    monkeypatch.setattr(template_trials, "PROOFS_PROGRAM", f"{start}; {endless}; p.main()")
    with pytest.raises(TooCostly, match="too much time or memory"):
        run_proofs("m", b"[]")


@pytest.mark.parametrize(
    ("program", "seconds", "why"),
    [
        ("import no_such_module", 60.0, "No module named 'no_such_module'"),
        ("import time; time.sleep(600)", 0.5, "no answer in 0 s"),
    ],
)
def test_a_process_of_proofs_that_fails_is_logged_with_its_consequence(
    program: str,
    seconds: float,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(template_trials, "PROOFS_PROGRAM", program)
    monkeypatch.setattr(template_trials, "PROOFS_S", seconds)
    with caplog.at_level(logging.WARNING, "kvgate.models"), pytest.raises(OSError, match=why):
        run_proofs("m", b"[]")
    (line,) = caplog.messages
    assert line.startswith("chat template of m: ") and why in line and "rendered whole until then" in line
