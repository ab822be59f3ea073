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
    "gateway/api.py",
    "gateway/doors/behind.py",
    "gateway/beyond.py",
    "gateway/core/answer.py",
    "gateway/core/blocks.py",
    "gateway/core/bodies.py",
    "gateway/core/booked.py",
    "gateway/core/bucket.py",
    "gateway/core/conversations.py",
    "gateway/core/deadlines.py",
    "gateway/core/drain_rate.py",
    "gateway/core/fit.py",
    "gateway/core/fleet.py",
    "gateway/core/forwarded.py",
    "gateway/core/framing.py",
    "gateway/core/headers.py",
    "gateway/core/http.py",
    "gateway/core/keys.py",
    "gateway/core/ledger.py",
    "gateway/core/masked.py",
    "gateway/core/outcome.py",
    "gateway/core/promised.py",
    "gateway/core/paces.py",
    "gateway/core/pairs.py",
    "gateway/core/prompt.py",
    "gateway/core/queue.py",
    "gateway/core/query.py",
    "gateway/core/ramp.py",
    "gateway/core/refusal.py",
    "gateway/core/request.py",
    "gateway/core/retries.py",
    "gateway/core/salted.py",
    "gateway/core/saturation.py",
    "gateway/core/seats.py",
    "gateway/core/settings.py",
    "gateway/core/template.py",
    "gateway/core/tenants.py",
    "gateway/core/transfer_speed.py",
    "gateway/core/texts.py",
    "gateway/core/tried.py",
    "gateway/core/unheard.py",
    "gateway/core/upgrade.py",
    "gateway/core/used.py",
    "gateway/core/worker.py",
    "gateway/exchange.py",
    "gateway/flow/askers.py",
    "gateway/flow/gate.py",
    "gateway/flow/lines.py",
    "gateway/flow/refusals.py",
    "gateway/index/assumed.py",
    "gateway/index/bits.py",
    "gateway/index/edges.py",
    "gateway/index/holder.py",
    "gateway/index/memory.py",
    "gateway/index/names.py",
    "gateway/index/shared.py",
    "gateway/keys/guard.py",
    "gateway/learning.py",
    "gateway/lookups.py",
    "gateway/loss/alike.py",
    "gateway/loss/explainer.py",
    "gateway/loss/outlook.py",
    "gateway/loss/past.py",
    "gateway/loss/witness.py",
    "gateway/metrics.py",
    "gateway/policies/disaggregation.py",
    "gateway/policies/expected_ttft.py",
    "gateway/policies/prefix_overlap.py",
    "gateway/policies/seconds.py",
    "gateway/splits/prefill.py",
    "gateway/prompts.py",
    "gateway/proxy.py",
    "gateway/records.py",
    "gateway/responder.py",
    "gateway/responses.py",
    "gateway/router.py",
    "gateway/server.py",
    "gateway/splits/exchange.py",
    "gateway/timer.py",
    "gateway/tunnel.py",
    "gateway/upstream.py",
    "gateway/verify/asking.py",
    "gateway/verify/exactness.py",
    "gateway/verify/tokens.py",
    "gateway/verify/verifier.py",
    "gateway/witnesses.py",
]
"""What a request runs through. None of them defines a msgspec struct: the fields' types, which msgspec
reads, are not kept in compiled classes."""


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
