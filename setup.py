"""Which modules a wheel holds as machine code. Everything else about the package is in pyproject.toml.

The data path is typed Python, and mypyc compiles it as it stands: a request then costs about half. The
source stays the truth: each module goes into the wheel beside its compiled form, a checkout (`pip install
-e .`) runs it interpreted, and so does a wheel built where mypyc or a C compiler is missing. `make wheel`
builds with both; GATEWAY_PURE=1 builds without. `kvgate --version` tells which one runs.
"""

import os
import sys

from setuptools import Extension, setup

COMPILED = [
    "gateway/proxy/api.py",
    "gateway/server/reverse_proxy.py",
    "gateway/server/upgrade_buffer.py",
    "gateway/http/response_observer.py",
    "gateway/core/blocks.py",
    "gateway/server/body_budget.py",
    "gateway/bookings/shared_ledger.py",
    "gateway/tenancy/admission/token_bucket.py",
    "gateway/http/caller.py",
    "gateway/tokenization/conversation_cache.py",
    "gateway/proxy/deadlines.py",
    "gateway/tenancy/admission/drain_rate.py",
    "gateway/core/eligibility.py",
    "gateway/core/requests/field_judgement.py",
    "gateway/routing/least_squares.py",
    "gateway/core/fleet.py",
    "gateway/http/forwarded.py",
    "gateway/http/framing.py",
    "gateway/http/headers.py",
    "gateway/http/messages.py",
    "gateway/tenancy/auth/api_keys.py",
    "gateway/core/ledger.py",
    "gateway/http/usage_redaction.py",
    "gateway/core/requests/model_name.py",
    "gateway/core/outcome.py",
    "gateway/bookings/promises.py",
    "gateway/routing/speed_model.py",
    "gateway/core/pd_pairs.py",
    "gateway/tokenization/pieces.py",
    "gateway/tokenization/prompt_encoder.py",
    "gateway/tenancy/admission/fair_queue.py",
    "gateway/routing/query.py",
    "gateway/core/slow_start.py",
    "gateway/http/refusal.py",
    "gateway/proxy/held_refusal.py",
    "gateway/proxy/accounting.py",
    "gateway/proxy/retryable.py",
    "gateway/core/requests/request.py",
    "gateway/core/requests/routes.py",
    "gateway/proxy/retries.py",
    "gateway/core/requests/adapter_field.py",
    "gateway/core/requests/cache_salt.py",
    "gateway/tenancy/admission/saturation.py",
    "gateway/routing/concurrency.py",
    "gateway/core/requests/steering.py",
    "gateway/tokenization/render_settings.py",
    "gateway/tokenization/sglang.py",
    "gateway/core/requests/field_types.py",
    "gateway/tokenization/chat_template.py",
    "gateway/tenancy/admission/tenants.py",
    "gateway/policies/transfer_speed.py",
    "gateway/tokenization/text_cache.py",
    "gateway/disaggregation/failed_pairs.py",
    "gateway/bookings/unconfirmed.py",
    "gateway/http/upgrade.py",
    "gateway/bookings/tenant_usage.py",
    "gateway/core/worker.py",
    "gateway/core/hit_rule.py",
    "gateway/proxy/exchange.py",
    "gateway/tenancy/admission/request_identity.py",
    "gateway/tenancy/admission/gate.py",
    "gateway/tenancy/admission/queues.py",
    "gateway/tenancy/admission/rejections.py",
    "gateway/index/assumed.py",
    "gateway/index/worker_bits.py",
    "gateway/index/edges.py",
    "gateway/index/holder.py",
    "gateway/index/memory.py",
    "gateway/index/engine_hashes.py",
    "gateway/bookings/shared_assumed.py",
    "gateway/proxy/intake.py",
    "gateway/tenancy/auth/authenticator.py",
    "gateway/routing/learning.py",
    "gateway/routing/candidates.py",
    "gateway/observability/cache_loss/prompt_similarity.py",
    "gateway/observability/cache_loss/explainer.py",
    "gateway/observability/cache_loss/attribution.py",
    "gateway/observability/cache_loss/block_history.py",
    "gateway/observability/cache_loss/observer.py",
    "gateway/observability/metrics.py",
    "gateway/policies/disaggregation.py",
    "gateway/policies/expected_ttft.py",
    "gateway/policies/prefix_overlap.py",
    "gateway/policies/cost_model.py",
    "gateway/disaggregation/prefill_leg.py",
    "gateway/models/prompt_source.py",
    "gateway/proxy/context.py",
    "gateway/proxy/dispatch.py",
    "gateway/proxy/prompts.py",
    "gateway/proxy/time_slice.py",
    "gateway/upstream/outgoing.py",
    "gateway/upstream/plan.py",
    "gateway/upstream/pools.py",
    "gateway/routing/decision_log.py",
    "gateway/server/responder.py",
    "gateway/proxy/responses.py",
    "gateway/routing/router.py",
    "gateway/server/connection.py",
    "gateway/disaggregation/legs.py",
    "gateway/runtime/deadline_timer.py",
    "gateway/proxy/websocket.py",
    "gateway/upstream/connection.py",
    "gateway/observability/verification/usage_sampling.py",
    "gateway/observability/verification/accuracy.py",
    "gateway/parity/live.py",
    "gateway/parity/live_check.py",
    "gateway/observability/verification/verifier.py",
    "gateway/observability/observers.py",
    "gateway/runtime/ids.py",
    "gateway/core/usage_reading.py",
    "gateway/core/requests/session_id.py",
    "gateway/apis/session.py",
    "gateway/apis/routes.py",
    "gateway/http/json_usage.py",
    "gateway/proxy/usage_check.py",
    "gateway/tokenization/template_stability.py",
    "gateway/tokenization/message_frame.py",
    "gateway/ingest/blind_recovery.py",
    "gateway/index/blind_recovery.py",
    "gateway/index/proofs.py",
    "gateway/models/offload.py",
]
"""The path of a request. None of these modules defines a msgspec struct: the fields' types, which msgspec
reads, are not kept in compiled classes. Left out on purpose: `apis/outline.py`, `apis/large_body.py` and
`apis/abridged.py` run in threads, where machine code would keep the interpreter lock from the first step to
the last; `routing/prompt_limit.py` serves long prompts only, and takes 1.4 us for eight workers either way.
"""


def extensions() -> list[Extension]:
    is_build = {"bdist_wheel", "build_ext"}.intersection(sys.argv)
    if not is_build or os.environ.get("GATEWAY_PURE"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        print("kvgate: mypyc is not installed, the wheel is pure Python", file=sys.stderr)
        return []
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    compiled: list[Extension] = mypycify([*options, *COMPILED], opt_level="2", debug_level="0")
    for extension in compiled:
        extension.optional = True  # without a C compiler the modules stay as they are
    return compiled


setup(ext_modules=extensions())
