"""Figure `hostile.template_late_ms`: how late others' requests are while a worker's model brings a chat
template that takes for ever, gigabytes, or a thousand levels.

    others ──small──►  gateway  ──►  simulated worker
    asker ──33 messages──►      ──►  another one: its model is a directory with the template

Others are late by the 99th percentile of their times over that of a quiet time before. `python -m
loadtest.hostile_templates` prints each template with the time until it is refused.
"""

import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app import bundled_tokenizer
from loadtest.extent import IS_SMOKE
from loadtest.fleet import SIM_READY, RunningFleet, first_match, gateway_before, running
from loadtest.hostile_body import (
    ANSWER_S,
    CHAT,
    COMPLETIONS,
    OTHER,
    SMALL,
    WORKER,
    memory_mb,
    post,
)
from loadtest.open_loop import MAX_LATE_MS, PHASE_S, late_ms, rounds_of
from loadtest.report import Figure, publish

NUM_MESSAGES = 33
REFUSED_S = 60.0
"""Seconds until a template must be refused."""

TRAPS: Mapping[str, str] = {
    "folded constant": "{% if false %}{{ 9**(9**9) }}{% endif %}{{ messages[0].content }}",
    "nested loops": "{% if messages|length == 33 %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}",
    "gigabytes": "{% if messages|length == 33 %}{{ 'a' * 1500000000 }}{{ '%1000000000d' % 1 }}{% endif %}"
    "{{ messages[0].content }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}
"""Templates by what they do."""
HARMLESS = "folded constant"
"""Template that is used: nothing is computed while it is compiled."""


@dataclass(frozen=True, slots=True)
class TemplateCost:
    """Cost of a template to others, the time until the model's tokenizer was settled, and what came of it."""

    late_ms: float
    took_s: float
    peak_mb: float
    outcome: str


def model_directory(folder: Path, template: str) -> Path:
    """Directory of a model with this chat template, and with the bundled tokenizer."""
    shutil.copytree(bundled_tokenizer(), folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def long_chat(model: str, num_messages: int = NUM_MESSAGES) -> bytes:
    messages = [{"role": "user", "content": "hello"}] * num_messages
    return json.dumps({"model": model, "messages": messages, "max_tokens": 1}).encode()


def cost_of(fleet: RunningFleet, worker_url: str, model: str, is_harmless: bool) -> TemplateCost:
    """Cost of the template of a worker that joins now, until it is refused, or used if it `is_harmless`."""
    outcome, took_s = "", 0.0

    def join() -> None:
        nonlocal outcome, took_s
        began = time.monotonic()
        _admin(fleet, "POST", "/admin/workers", {"url": worker_url})
        while not outcome and time.monotonic() < began + REFUSED_S:
            post(fleet.gateway_url, CHAT, long_chat(model))
            outcome = outcome_of(_admin(fleet, "GET", "/admin/tokenizer"), model, is_harmless)
        took_s = time.monotonic() - began
        time.sleep(max(0.0, PHASE_S - took_s))

    late = late_ms(fleet.gateway_url, OTHER, join, is_once=True)
    if not outcome:
        raise RuntimeError(f"the template is not settled after {REFUSED_S:.0f} s")
    return TemplateCost(late, took_s, memory_mb(fleet.gateway_pid, "VmHWM"), outcome)


def outcome_of(status: Mapping[str, Any], model: str, is_harmless: bool = False) -> str:
    """Why a model's template is refused, by /admin/tokenizer, or the encoder of one that is used as it should
    be; empty until then."""
    for each in status["models"]:
        if each["model"] == model and each.get("tokenizer") == "absent":
            return str(each["tokenizer_reason"])
        if each["model"] == model and is_harmless:
            return str(each.get("encoder") or "")
    return ""


def _admin(fleet: RunningFleet, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        fleet.admin_url + path, data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.loads(answer.read() or b"null")


def measured(trap: str) -> TemplateCost:
    """Cost of a template, with a gateway of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = str(model_directory(folder / "model", TRAPS[trap]))
        sims = [
            stack.enter_context(running("sim", "--port", "0", *WORKER, "--model", m)) for m in (OTHER, model)
        ]
        urls = [first_match(each, SIM_READY)[0] for each in sims]
        fleet = stack.enter_context(gateway_before(urls[:1], ("--no-tokenizer-probe",)))
        _until_ready(fleet)
        return cost_of(fleet, urls[1], model, trap == HARMLESS)


def _until_ready(fleet: RunningFleet) -> None:
    end = time.monotonic() + ANSWER_S
    while post(fleet.gateway_url, COMPLETIONS, SMALL)[0] != 200:
        if time.monotonic() > end:
            raise RuntimeError("the gateway does not answer")
        time.sleep(0.1)


def measure() -> list[Figure]:
    """Figure of the worst template; of each the best of some rounds counts. A round within the goal ends
    them."""
    lates = []
    for name in TRAPS:

        def once(trap: str = name) -> float:
            cost = measured(trap)
            print(shown(trap, cost), flush=True)
            return cost.late_ms

        lates.append(round(min(rounds_of(once)), 1))
    return [Figure("hostile.template_late_ms", max(lates), "ms", None if IS_SMOKE else MAX_LATE_MS, lates)]


def shown(name: str, cost: TemplateCost) -> str:
    return (
        f"{name:18} {cost.late_ms:8.1f} ms late  {cost.took_s:5.1f} s  {cost.peak_mb:5.0f} MB  {cost.outcome}"
    )


if __name__ == "__main__":
    publish("hostile_templates", measure())
