"""Proofs of the cut points of a model's usual settings, made elsewhere while the model is loaded.

    settings ─► task ─► process (`proof_process.py`): each is proved ─► answer ─► settings

They take up to some seconds of Python, with its lock held, so that no thread of a gateway may make them. A
task and its answer are JSON: what comes back is texts, marks and features of stubs, and the refusals.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gateway.core.rendering import Rendering
from gateway.tokenization.chat_template import Template, TooCostly
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.render_settings import RenderSetting
from gateway.tokenization.template_reading import markup_of
from gateway.tokenization.template_stability import CutRefusal, ProbeOutcome, Proof, stub_of

NUM_PLAIN: Final = 2
"""Settings of a task that are proved whatever they take: the plain ones, with tools and without."""
MAX_TASK_UNITS: Final = 30_000_000
"""Units after which a task begins no more proofs, some 2 s. The settings that are left are proved a step at a
time, while their requests are rendered whole."""

Run = Callable[[bytes], bytes]
"""Runs a task as `proved` does. Raises TooCostly if it takes too much, OSError if it cannot be run."""
Compiled = Callable[[Rendering, str], Template]
"""Compiles a template for engines of a rendering."""


def prove_by(
    run: Run | None, rendering: Rendering, cuts: Sequence[str], settings: Sequence[RenderSetting]
) -> None:
    """Prove settings of one model with templates for engines of a rendering; without `run` here. `cuts`
    are the special tokens at which text can be cut. A setting stays unproved where the task cannot be run,
    and has no cut point where it takes too much."""
    if run is None:
        prove_here(cuts, settings)
        return
    settings = [each for each in settings if _is_plain_data(each.variables)]
    if not settings:
        return
    try:
        answers = json.loads(run(task_of(rendering, cuts, settings)))
    except TooCostly:
        answers = [{"proof": None, "units": 0} for _ in settings]
    except OSError:
        return
    for setting, answer in zip(settings, answers, strict=True):
        if answer is not None:
            setting.take(_proof(answer["proof"], setting), answer["units"])


def prove_here(cuts: Sequence[str], settings: Sequence[RenderSetting]) -> None:
    """Prove settings one after another, up to MAX_TASK_UNITS."""
    for number, setting in enumerate(settings):
        if number < NUM_PLAIN or sum(each.num_units for each in settings) < MAX_TASK_UNITS:
            while not setting.prove(cuts):
                pass


def task_of(rendering: Rendering, cuts: Sequence[str], settings: Sequence[RenderSetting]) -> bytes:
    """Task with all that the proofs of settings depend on."""
    sources = list(dict.fromkeys(each.template.source for each in settings))
    given = [(sources.index(each.template.source), each.variables, each.now.isoformat()) for each in settings]
    task = {"rendering": rendering, "cuts": list(cuts), "templates": sources, "settings": given}
    return json.dumps(task).encode()


def proved(task: bytes, compiled: Compiled) -> bytes:
    """Answer to a task: for each setting the proof and its units, or null where it was not begun."""
    given = json.loads(task)
    engine, version, parser = given["rendering"]
    rendering = Rendering(engine, tuple(version), parser)
    templates = [compiled(rendering, source) for source in given["templates"]]
    settings = [
        RenderSetting(templates[at], markup_of(templates[at]), variables, datetime.fromisoformat(now))
        for at, variables, now in given["settings"]
    ]
    prove_here(given["cuts"], settings)
    answers = [
        {"proof": _plain(each), "units": each.num_units} if each.stubs is not None else None
        for each in settings
    ]
    return json.dumps(answers).encode()


def _is_plain_data(variables: Mapping[str, Any]) -> bool:
    """True if the variables are the same in another process."""
    return bool(json.loads(json.dumps(variables)) == variables)


def _plain(setting: RenderSetting) -> dict[str, Any] | None:
    """Proof of a setting as plain data; None where a probe takes too much."""
    if setting.is_costly:
        return None
    stubs = (setting.stubs or {}).items()
    return {
        "stubs": [(cut, stub.text, stub.mark, stub.allowed) for cut, stub in stubs],
        "refusals": [(each.cut, each.feature, each.how.name) for each in setting.refusals],
    }


def _proof(plain: Mapping[str, Any] | None, setting: RenderSetting) -> Proof | None:
    if plain is None:
        return None
    parse, stubs, refusals = setting.template.conversation, plain["stubs"], plain["refusals"]
    return Proof(
        {CutPoint(cut): stub_of(parse, CutPoint(cut), *rest) for cut, *rest in stubs},
        [CutRefusal(CutPoint(cut), feature, ProbeOutcome[how]) for cut, feature, how in refusals],
    )
