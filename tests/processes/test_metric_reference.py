"""Prometheus's conventions (https://prometheus.io/docs/practices/naming), held for every metric."""

import importlib
import pkgutil
import re

import pytest

import gateway
from gateway.observability.metric_spec import MetricKind, MetricSpec
from gateway.processes.metric_reference import SPECS, page

UNITS = {"seconds": "second", "bytes": "byte", "ratio": "from 0 to 1", "tokens": "token", "blocks": "block"}
"""Units in a name, and the words for them in the help text."""
COMMON_LABELS = (
    "worker",
    "model",
    "route",
    "status",
    "code",
    "error",
    "reason",
    "cause",
    "result",
    "policy",
    "tenant",
    "plan",
)
OTHER_LABELS = (
    *("version", "python", "compiled", "source", "sender", "stage", "state", "kind", "process"),
    *("role", "medium", "key"),
)
UNCLEAR = re.compile(
    r"\b(we|us|our|ours|you|it|its|itself|they|them|their|theirs|these|those|he|she|who|who(?:m|se)|"
    r"t(?:old|ells?)|said|says|n(?:obody)|a(?:new)|held|holds?)\b",
    re.I,
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_metric_keeps_the_conventions(spec: MetricSpec) -> None:
    assert re.fullmatch(r"kvgate(_[a-z0-9]+)+", spec.name)
    assert spec.name.endswith("_total") == (spec.kind is MetricKind.COUNTER)
    assert not spec.name.endswith(("_count", "_sum", "_bucket"))
    assert not set(spec.name.split("_")) & {
        "ms",
        "us",
        "s",
        "kb",
        "mb",
        "kib",
        "mib",
        "percent",
        "gauge",
        "counter",
    }
    assert spec.kind is not MetricKind.HISTOGRAM or spec.name.endswith(("_seconds", "_ratio"))
    assert set(spec.labels) <= {*COMMON_LABELS, *OTHER_LABELS}
    base = spec.name.removesuffix("_total")
    for unit, word in UNITS.items():
        middle = unit in ("seconds", "bytes", "ratio") and f"_{unit}_" in base
        assert not middle, "the unit is the last word of a name"
        if base.endswith(f"_{unit}") and spec.name != "kvgate_ttft_prediction_error_ratio":  # it may exceed 1
            assert word in spec.help.lower()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_help_text_makes_sense_alone(spec: MetricSpec) -> None:
    assert re.fullmatch(r"[A-Z1].{20,250}\.", spec.help)
    assert not (found := UNCLEAR.findall(spec.help)), found
    assert "|" not in spec.help and "\n" not in spec.help


def test_names_are_unique_and_all_declarations_are_listed() -> None:
    assert len({spec.name for spec in SPECS}) == len(SPECS)
    declared: set[str] = set()
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            names = vars(importlib.import_module(module.name))
            specs = [each for each in names.values() if isinstance(each, MetricSpec)]
            metrics = names.get("METRICS", ())
            declared.update(each.name for each in (*specs, *metrics) if isinstance(each, MetricSpec))
    unlisted = declared - {spec.name for spec in SPECS}
    assert unlisted == set(), "in no METRICS, or METRICS in no metric_sections of a component"
    assert {spec.name for spec in SPECS} == declared


def test_the_page_has_a_row_for_each_metric() -> None:
    rows = re.findall(r"^\| `(kvgate_\w+)` \|", page(), re.M)
    assert rows == [spec.name for spec in SPECS]
