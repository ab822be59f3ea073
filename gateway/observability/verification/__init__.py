"""Verification: predicted cache hits compared with the ones that engines report.

usage_sampling  streams sampled for their usage     verifier     observes decisions, answers, events, scrapes
accuracy        accuracy of recent predictions      misprediction   the cause of a wrong one
tapped_index    an index that reports its events    engine_counters  the engine's own counts
salt_alarm      answers with other tenants' cached tokens
metrics         /metrics and /admin/verify          (tokens: `gateway/parity`)
"""
