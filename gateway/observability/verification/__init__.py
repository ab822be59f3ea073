"""Verification: predicted cache hits beside the ones that engines report.

usage_sampling  streams asked for their usage       verifier     sees decisions, answers, events, scrapes
accuracy        how right predictions were          causes       reasons for a wrong one
token_check     our prompt tokens and the engine's  engine_counters  the engine's own counts
tapped_index    an index that reports its events    metrics      /metrics and /admin/verify
"""
