"""Which options are live: a reload of the configuration changes them in a running gateway, and from when on.

Everything that is not here needs a restart, which a reload says and otherwise leaves as it is: it is bound,
allocated or told to others at the start. With `--takeover-socket` a restart drops nothing either.
"""

from collections.abc import Mapping

AT_ONCE, REQUESTS, CONNECTIONS = "at once", "new requests", "new connections"

LIVE: Mapping[str, str] = {
    # the fleet: who is new joins as at start; who is gone gets no new requests, and ends those it has
    **dict.fromkeys(("worker", "prefill", "decode"), AT_ONCE),
    # how one is chosen
    **dict.fromkeys(
        ("policy", "policies", "policy_file", "policy_budget_ms", "ab", "shadow", "medium_worth", "place"),
        REQUESTS,
    ),
    **dict.fromkeys(("session_header", "session_cookie"), REQUESTS),
    # who is let in: limits count for who is known already, with what it has used
    **dict.fromkeys(
        (
            *("queue_above_ttft_s", "max_in_flight_per_worker", "max_queued", "queue_timeout_s", "tenants"),
            *("trust_headers_from", "tenant_header", "priority_header", "slo_header"),
        ),
        REQUESTS,
    ),
    # how workers are reached: requests under way keep the times that they began with
    **dict.fromkeys(
        (
            *(
                "connect_timeout_s",
                "first_byte_timeout_s",
                "idle_timeout_s",
                "total_timeout_s",
                "pool_idle_s",
            ),
            *("max_attempts", "retry_share", "prefill_timeout_s", "allow_transfer_fields", "expose_headers"),
        ),
        REQUESTS,
    ),
    "probe_interval_s": AT_ONCE,
    "verify": REQUESTS,
    # how clients are read
    **dict.fromkeys(
        (
            *("max_body_bytes", "max_head_bytes", "head_timeout_s", "body_timeout_s", "min_body_rate"),
            *("keep_alive_s", "tls_handshake_timeout_s"),
        ),
        CONNECTIONS,
    ),
    # the program itself
    **dict.fromkeys(("log_level", "log_requests", "drain_timeout_s"), AT_ONCE),
}

SECRET = frozenset({"redis"})
"""What may hold a password is said to have changed, never what it is."""
