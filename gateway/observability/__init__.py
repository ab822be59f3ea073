"""Observability: metrics, the log, traces, recordings. Never the text of a prompt.

metrics       counters and histograms            observers     hooks that see each decision and answer
access_log    a line per request                 log_setup     the form of the log
log_sink      log lines written without blocking
traceparent   the trace of a request             spans, otlp   the trace's spans, and the export
recorder      requests recorded for a replay     request_end   how a request ended, and who failed
verification/ predictions and reports of engines
cache_loss/   why cached tokens were computed again
recording     a line of a recording              telemetry     access log and traces together
metric_spec   declarations of metrics            collector     the gateway's own metrics
"""
