"""Names that operators read and write: fields of the admin API, decision records, log lines and recordings,
metrics, labels, span attributes, headers, options, messages, values of the chart, and states. None has a word
of DIALECT in it."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from gateway.admin.fields import View
from gateway.agent.config import AgentConfig
from gateway.app.gateway_parts import Parts
from gateway.config import Config
from gateway.config.options import options
from gateway.core.event_stream import StreamState
from gateway.core.fleet import STATES
from gateway.disaggregation.prefill_leg import PrefillFailure
from gateway.models.loader import LoadState
from gateway.observability.access_log import RequestLine
from gateway.observability.cache_loss.attribution import LossCause
from gateway.observability.recording import Recorded
from gateway.observability.verification.misprediction import ErrorCause
from gateway.parity.token_source import TokenSource
from gateway.policies.framework import guard
from gateway.processes.metric_reference import SPECS

ROOT = Path(__file__).parent.parent
DIALECT = re.compile(
    r"abroad|alike|alone|a(?:new)|arms|ask(?:ed|er|s)|conduct|crowd|cut|fate|flow|gone|guard|hand(?:ed|s)|harm"
    r"|heirs?|held|here|heritage|homes|how|keeper|lea(?:ve|ves|ving)|left|maker|n(?:obody)|nonsense|ours|own|pace"
    r"|ramp|refus(?:als?|e|ed)|resting|said|seats|shel(?:f|ved)|sought|spilled|standing|t(?:ell|ells|old)|theirs"
    r"|trials|turn|unasked|unheard|verdict|warm|way|wh(?:at|o|om|oever|ose|y)|witness|worst"
)
"""Words that say too little by themselves, or something else to operators. Say reason, result, source,
remaining, rejected, paused, removed, in_flight."""
CAUSES = {"kvgate_recomputed_prompt_tokens_total", "kvgate_mispredictions_total"}
"""Metrics by typed causes, which the admin API names causes too; all else is a reason."""

_KEY = re.compile(r'"([a-z][a-z0-9_]*)":')
_ATTRIBUTE = re.compile(r'"(kvgate\.[a-z0-9_]+)"')
_HEADER = re.compile(r"x-kvgate-[a-z-]+")
_PROTO = re.compile(r"^\s+(?:repeated |optional )?[\w.]+ (\w+) = \d+", re.MULTILINE)
_VALUE = re.compile(r"^\s*(\w+):", re.MULTILINE)
"""A value of the Helm chart, in camel case."""
_QUERY = re.compile(r'(?:query(?:\.get\(|\[)|_count\(request, )"(\w+)"')


def _found(pattern: re.Pattern[str], *paths: str) -> Iterator[str]:
    for path in paths:
        for source in sorted(ROOT.glob(path)):
            yield from pattern.findall(source.read_text())


def _views(view: type[View] = View) -> Iterator[type[View]]:
    for each in view.__subclasses__():
        yield from (each, *_views(each))


def _fields(*structs: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for each in structs for field in msgspec.structs.fields(each)]


def _states() -> list[str]:
    enums = (StreamState, LoadState, TokenSource, LossCause, ErrorCause, PrefillFailure)
    faults = (guard.RAISED, guard.INVALID, guard.LATE, guard.PAUSED)
    return [*STATES, *faults, *(each.value for enum in enums for each in enum)]


NAMES: Mapping[str, Callable[[], list[str]]] = {
    "paths of the admin API": lambda: [each.path for each in Parts.admin_routes()],
    "declared fields of the admin API": lambda: _fields(*_views()),
    "other fields of the admin API": lambda: [
        *_found(_KEY, "gateway/admin/**/*.py", "gateway/tenancy/admission/*.py")
    ],
    "parameters of the admin API": lambda: [*_found(_QUERY, "gateway/admin/**/*.py")],
    "decision records": lambda: [*_found(_KEY, "gateway/routing/decision_log.py", "gateway/costs/*.py")],
    "log lines": lambda: _fields(RequestLine),
    "recordings": lambda: _fields(Recorded),
    "metrics": lambda: [spec.name for spec in SPECS],
    "labels": lambda: [label for spec in SPECS for label in spec.labels],
    "span attributes": lambda: [*_found(_ATTRIBUTE, "gateway/observability/*.py")],
    "headers": lambda: [*_found(_HEADER, "gateway/**/*.py")],
    "options": lambda: [f"{each.path} {each.key}" for each in (*options(Config), *options(AgentConfig))],
    "messages": lambda: [*_found(_PROTO, "proto/**/*.proto")],
    "values of the chart": lambda: [*_found(_VALUE, "deploy/helm/kvgate/values.yaml")],
    "states and causes": _states,
}


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", re.sub(r"(?=[A-Z])", " ", name).lower())


def test_words_of_a_name() -> None:
    assert _words("kvgate.error_origin") == ["kvgate", "error", "origin"]
    assert [word for word in _words("numLeft_alone") if DIALECT.fullmatch(word)] == ["left", "alone"]


@pytest.mark.parametrize("interface", NAMES)
def test_names_have_no_word_of_the_dialect(interface: str) -> None:
    names = NAMES[interface]()
    assert names
    found = [name for name in names if any(map(DIALECT.fullmatch, _words(name)))]
    assert not found, f"{interface}: {found}"


def test_metrics_of_typed_causes_have_a_cause_and_all_others_a_reason() -> None:
    assert {spec.name for spec in SPECS if "cause" in spec.labels} == CAUSES
    assert {"cause", "reason"} <= {label for spec in SPECS for label in spec.labels}


def test_results_are_labelled_in_one_form() -> None:
    """Values of labels, as in `kind` of `kvgate_epp_events_total`, are words with underscores."""
    counted = [
        *_found(
            re.compile(r'counts\["([^"]+)"\]'),
            *(f"gateway/{room}/*.py" for room in ("epp", "decide", "models")),
        )
    ]
    assert counted and [name for name in counted if not re.fullmatch(r"[a-z_]+", name)] == []
