"""Every metric of kvgate by subject, and the reference page that `kvgate metrics` prints
(`docs/reference/metrics.md`)."""

from collections.abc import Iterator, Sequence

from gateway.app import reloads
from gateway.bookings import metrics as bookings
from gateway.decide import metrics as decide
from gateway.disaggregation import metrics as disaggregation
from gateway.discovery import lifecycle_metrics
from gateway.discovery import recovery_metrics as recovery
from gateway.discovery.kubernetes import metrics as kubernetes
from gateway.epp import metrics as epp
from gateway.models import metrics as models
from gateway.observability import collector, log_setup, otlp
from gateway.observability.cache_loss import metrics as cache_loss
from gateway.observability.metric_spec import MetricSpec, counter, gauge
from gateway.observability.verification import metrics as verification
from gateway.proxy import retry_metrics
from gateway.replication import metrics as replication
from gateway.replication import tree_metrics
from gateway.routing import active_policy, experiment_metrics, prediction_metrics
from gateway.scaling import metrics as scaling
from gateway.tenancy.admission import metrics as admission
from gateway.tenancy.auth import metrics as auth

PROCESSES = gauge("kvgate_processes", "Processes that serve requests.")
RESTARTS = counter(
    "kvgate_process_restarts_total", "Restarts of a process that ended unexpectedly, by process.", "process"
)
PROCESS_RESPONSES = counter(
    "kvgate_process_responses_total", "HTTP responses to clients, by process.", "process"
)
OWN = (PROCESSES, RESTARTS, PROCESS_RESPONSES)
"""Metrics of the supervisor (`processes/admin.py`)."""

SECTIONS: Sequence[tuple[str, Sequence[MetricSpec]]] = (
    ("Requests, workers, event streams, index, event loop", collector.METRICS),
    ("Retries and buffered request bodies", retry_metrics.METRICS),
    ("Endpoint picker", epp.METRICS),
    ("Decision service", decide.METRICS),
    ("Advice for autoscalers", scaling.METRICS),
    ("Worker lifecycle", lifecycle_metrics.METRICS),
    ("Workers in Kubernetes", kubernetes.METRICS),
    ("Accuracy of predictions", verification.METRICS),
    ("Cache losses", cache_loss.METRICS),
    ("Recovery of BLIND event streams", recovery.METRICS),
    ("Tokenizers", models.METRICS),
    ("Policies", active_policy.METRICS),
    ("Predicted times to first token", prediction_metrics.METRICS),
    ("A/B tests and shadow policies", experiment_metrics.METRICS),
    ("Disaggregation", disaggregation.METRICS),
    ("Admission control", admission.METRICS),
    ("Authentication", auth.METRICS),
    ("Bookings shared between gateways", bookings.METRICS),
    ("Replication through Redis", replication.METRICS),
    ("Index in Redis", tree_metrics.METRICS),
    ("Configuration", reloads.METRICS),
    ("Log and traces", (*log_setup.METRICS, *otlp.METRICS)),
    ("Several processes", OWN),
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
