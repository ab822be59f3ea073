"""Every metric of kvgate by subject, and the reference page that `kvgate metrics` prints
(`docs/reference/metrics.md`)."""

from collections.abc import Iterator, Sequence

from gateway.app.gateway_parts import Parts
from gateway.observability.metric_spec import MetricSpec, counter, gauge

PROCESSES = gauge("kvgate_processes", "Processes that serve requests.")
RESTARTS = counter(
    "kvgate_process_restarts_total", "Restarts of a process that ended unexpectedly, by process.", "process"
)
PROCESS_RESPONSES = counter(
    "kvgate_process_responses_total", "HTTP responses to clients, by process.", "process"
)
OWN = (PROCESSES, RESTARTS, PROCESS_RESPONSES)
"""Metrics of the supervisor (`processes/admin.py`)."""

SECTIONS: Sequence[tuple[str, Sequence[MetricSpec]]] = sorted(
    [*Parts.metric_sections(), ("Several processes", OWN)], key=lambda section: section[0]
)
SPECS: Sequence[MetricSpec] = [spec for _, specs in SECTIONS for spec in specs]

INTRODUCTION = """\
# Metrics

`GET /metrics` on the admin port, in Prometheus's text format. A counter starts at 0 when kvgate starts and
grows by one for each item that its help text names, or by the number of tokens, bytes or seconds. Metrics of
a feature that is off are absent. With `--processes`, one page covers all processes. prometheus-client's
`process_*` and `python_*` metrics are on the page too. `make docs` writes this page.
"""


def page() -> str:
    return INTRODUCTION + "".join(f"\n## {title}\n\n{_table(specs)}" for title, specs in SECTIONS)


def _table(specs: Sequence[MetricSpec]) -> str:
    return "".join(f"{line}\n" for line in _lines(specs))


def _lines(specs: Sequence[MetricSpec]) -> Iterator[str]:
    yield "| metric | type | labels | help |"
    yield "|---|---|---|---|"
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        yield f"| `{spec.name}` | {spec.kind.value} | {labels} | {spec.help} |"
